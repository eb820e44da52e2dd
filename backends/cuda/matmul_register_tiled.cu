// matmul on the FP32 pipes, every thread with 8 x THREAD_N sums in registers; the next tile travels meanwhile.
//
// Shared memory hands out 128 bytes per cycle, 4 cycles for a 16-byte load of a warp, while the FP32 pipes do 4 warps'
// multiplications. At 8x8 a thread does 64 products per 4 such loads and both run at their limit; at 8x16, 128 per 6.
#include "matmul.cuh"

#ifndef A_VECTOR  // elements per global load; divides the leading dimension, the contiguous extent and the address
#define A_VECTOR 1
#endif
#ifndef B_VECTOR
#define B_VECTOR 1
#endif
#ifndef THREAD_N
#define THREAD_N 8
#endif
#ifndef BLOCK_K
#define BLOCK_K 8
#endif

constexpr int BLOCK = 128;  // rows and columns of c per block
constexpr int THREADS = BLOCK * BLOCK / (8 * THREAD_N);
constexpr int PITCH = BLOCK + 4;  // the transposing stores of 8 k's reach 2 rows apart: 4 words of skew separate them
constexpr int ELEMENTS = BLOCK * BLOCK_K / THREADS;  // of each operand, per thread and tile
using Panel = float[BLOCK_K][PITCH];

// A thread's share of a BLOCK x BLOCK_K operand tile, on its way from global to shared memory through registers.
template <bool KMajor, int Width>
struct Share {
    static constexpr int LINE = (KMajor ? BLOCK_K : BLOCK) / Width;  // vectors per contiguous line
    Vec<Element, Width> held[ELEMENTS / Width];

    static __device__ __forceinline__ int outer(int i) { return (threadIdx.x + i * THREADS) / LINE; }
    static __device__ __forceinline__ int inner(int i) { return (threadIdx.x + i * THREADS) % LINE * Width; }

    __device__ __forceinline__ void load(const Element* x, i64 ld, int mn0, int k0, int extent, int K) {
#pragma unroll
        for (int i = 0; i < ELEMENTS / Width; i++) {
            const int mn = mn0 + (KMajor ? outer(i) : inner(i)), k = k0 + (KMajor ? inner(i) : outer(i));
            held[i] = {};
            if (mn < extent && k < K) held[i] = ::load<Width>(x + position<KMajor>(mn, k, ld));
        }
    }

    __device__ __forceinline__ void store(Panel& panel) const {
#pragma unroll
        for (int i = 0; i < ELEMENTS / Width; i++) {
            Vec<float, Width> line;
#pragma unroll
            for (int v = 0; v < Width; v++) line.v[v] = to_float(held[i].v[v]);
            if constexpr (KMajor) {
#pragma unroll
                for (int v = 0; v < Width; v++) panel[inner(i) + v][outer(i)] = line.v[v];
            } else {
                ::store(&panel[outer(i)][inner(i)], line);
            }
        }
    }
};

// Count values of one row of a panel in 16-byte loads `apart` elements from one another.
template <int Count>
__device__ __forceinline__ void load_row(float (&x)[Count], const float* row, int apart) {
#pragma unroll
    for (int i = 0; i < Count; i += 4)
        *reinterpret_cast<float4*>(x + i) = *reinterpret_cast<const float4*>(row + i / 4 * apart);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)  // 2 blocks: while one waits at a barrier the other computes
    matmul_register_tiled(const Element* __restrict__ a, const Element* __restrict__ b, Element* __restrict__ c, int M,
                          int N, int K, i64 lda, i64 ldb) {
    __shared__ alignas(16) Panel a_panel[2], b_panel[2];  // [k][m], [k][n]
    const Tile tile = grouped_tile(blockIdx.x, cdiv(M, BLOCK), cdiv(N, BLOCK));
    const int m0 = tile.m * BLOCK, n0 = tile.n * BLOCK;
    // Warps of 64 x WARP_N, 8 x 4 lanes: a lane's sums are groups of 4 x 4, 32 rows and 16 columns apart.
    constexpr int WARP_N = 4 * THREAD_N, WARPS_N = BLOCK / WARP_N;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / WARPS_N * 64 + lane / 4 * 4, column = warp % WARPS_N * WARP_N + lane % 4 * 4;
    Share<A_K_MAJOR, A_VECTOR> a_share;
    Share<B_K_MAJOR, B_VECTOR> b_share;
    float sum[8][THREAD_N] = {};
    a_share.load(a, lda, m0, 0, M, K);
    b_share.load(b, ldb, n0, 0, N, K);
    for (int k0 = 0, stage = 0; k0 < K; k0 += BLOCK_K, stage ^= 1) {
        a_share.store(a_panel[stage]);
        b_share.store(b_panel[stage]);
        __syncthreads();  // one per tile: the other stage was last read before the previous one
        if (k0 + BLOCK_K < K) {
            a_share.load(a, lda, m0, k0 + BLOCK_K, M, K);
            b_share.load(b, ldb, n0, k0 + BLOCK_K, N, K);
        }
#pragma unroll
        for (int k = 0; k < BLOCK_K; k++) {
            float x[8], y[THREAD_N];
            load_row(x, &a_panel[stage][k][row], 32);
            load_row(y, &b_panel[stage][k][column], 16);
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < THREAD_N; j++) sum[i][j] += x[i] * y[j];
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < THREAD_N; j += C_VECTOR) {
            const int m = m0 + row + i % 4 + i / 4 * 32, n = n0 + column + j % 4 + j / 4 * 16;
            float out[C_VECTOR];
#pragma unroll
            for (int v = 0; v < C_VECTOR; v++) out[v] = sum[i][j + v];
            if (m < M && n < N) store(c + (i64)m * N + n, from_floats<Element>(out));
        }
}
