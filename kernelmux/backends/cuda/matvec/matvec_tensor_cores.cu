// matvec on tensor cores: y[b, n] = scale[n] * sum over k of weight[n, k] * x[b, k]. weight: [N, K] of 16 bits or int8,
// x: [B, K] of 16 bits, y: [B, N].
//
// A block owns ROW_TILES times 16 rows of the weight, for which x is read once, and its warps share their columns. A product sums
// over k in any order, so each thread loads 16 neighbouring bytes of two rows of each tile and of x and gives them to the tensor
// core as they come: nothing passes through shared memory. int8 becomes 16-bit floats in registers, exactly.
//
//   -DELEMENT=type of x and y   -DINT8=0 or 1   -DTILES=groups of 8 vectors   -DWARPS=n   -DUNROLL=loads in flight per row
//   -DROW_TILES=n
#include "tensor_cores.cuh"

using T = ELEMENT;

constexpr int HELD = INT8 ? 16 : 8;   // elements of a row in one access of a thread
constexpr int CHUNK = 4 * HELD;       // columns that a warp reads at once
constexpr int STEPS = HELD / 4;       // products of them
constexpr int STEP = CHUNK * UNROLL;  // columns of a warp in one round

__device__ __forceinline__ unsigned difference(unsigned a, unsigned b, __half) {
    return bits<unsigned>(__hsub2(bits<__half2>(a), bits<__half2>(b)));
}
__device__ __forceinline__ unsigned difference(unsigned a, unsigned b, __nv_bfloat16) {
    return bits<unsigned>(__hsub2(bits<__nv_bfloat162>(a), bits<__nv_bfloat162>(b)));
}
__device__ __forceinline__ constexpr unsigned exponent(__half) { return 0x64; }         // of 2^10, as a byte
__device__ __forceinline__ constexpr unsigned exponent(__nv_bfloat16) { return 0x43; }  // of 2^7

// Four bytes as two pairs of 16-bit floats. Below the exponent of 2^p, the last digit of which is 1, the seven digits of a
// byte are 2^p and their value, and its sign is 2^p or 2^p + 128: their difference is the number.
__device__ __forceinline__ void widen(unsigned* to, unsigned four) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned pair = __byte_perm(four, exponent(T()), i ? 0x4342 : 0x4140);
        to[i] = difference(pair & 0xff7fff7fu, pair & 0xff80ff80u, T());
    }
}

// Sixteen bytes of a row as operands.
__device__ __forceinline__ void operands(unsigned (&to)[2 * STEPS], const uint4& held) {
    const unsigned words[4] = {held.x, held.y, held.z, held.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if constexpr (INT8) widen(to + 2 * i, words[i]);
        else to[i] = words[i];
}

__device__ __forceinline__ void load_vector(unsigned (&to)[2 * STEPS], const T* x, bool inside) {
#pragma unroll
    for (int i = 0; i < HELD / 8; ++i) {
        const uint4 found = inside ? __ldg(reinterpret_cast<const uint4*>(x) + i) : uint4{};
        to[4 * i] = found.x, to[4 * i + 1] = found.y, to[4 * i + 2] = found.z, to[4 * i + 3] = found.w;
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) matvec_tensor_cores(
    const unsigned char* __restrict__ weight, const T* __restrict__ x, const float* __restrict__ scale, T* __restrict__ y,
    int N, int K, int B, i64 weight_row, i64 x_row) {
    constexpr int ROWS = 16 * ROW_TILES;  // of a block
    __shared__ float partial[WARPS][ROWS][8 * TILES + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, place = lane % 4;
    const i64 first = blockIdx.x * (i64)ROWS;
    const unsigned char* rows[2 * ROW_TILES];  // of this thread; weight_row is in bytes
#pragma unroll
    for (int i = 0; i < 2 * ROW_TILES; ++i) rows[i] = weight + min(first + group + 8 * i, N - 1LL) * weight_row;
    float sums[ROW_TILES][TILES][4] = {};
    for (int round = warp * STEP; round < K; round += WARPS * STEP) {  // the same rounds in all lanes
        const int begin = round + place * HELD;
        uint4 held[UNROLL][2 * ROW_TILES];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int i = 0; i < 2 * ROW_TILES; ++i) {
                const int k = begin + u * CHUNK;
                held[u][i] = k < K ? __ldcs(reinterpret_cast<const uint4*>(rows[i] + k * (i64)(16 / HELD))) : uint4{};
            }
        unsigned with[UNROLL][TILES][2 * STEPS];  // asked for before the weight has arrived
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const int b = tile * 8 + group, k = begin + u * CHUNK;
                load_vector(with[u][tile], x + b * x_row + k, b < B && k < K);
            }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r) {
                unsigned upper[2 * STEPS], lower[2 * STEPS];
                operands(upper, held[u][2 * r]);
                operands(lower, held[u][2 * r + 1]);
#pragma unroll
                for (int s = 0; s < STEPS; ++s) {
                    const unsigned a[4] = {upper[2 * s], lower[2 * s], upper[2 * s + 1], lower[2 * s + 1]};
#pragma unroll
                    for (int tile = 0; tile < TILES; ++tile)
                        mma(sums[r][tile], a, with[u][tile][2 * s], with[u][tile][2 * s + 1], T());
                }
            }
    }
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                partial[warp][16 * r + group + i / 2 * 8][tile * 8 + place * 2 + i % 2] = sums[r][tile][i];
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * B; i += 32 * WARPS) {
        const i64 n = first + i % ROWS;
        if (n >= N) continue;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += partial[w][i % ROWS][i / ROWS];
        y[i / ROWS * (i64)N + n] = from_float<T>(scale ? sum * __ldg(scale + n) : sum);
    }
}
