// int8_matmul through mma.sync (sm_80): c = a b in int32, or scale_a * (a b) * scale_b in bf16. Operands lie in any way.
//
// A block computes 128 x 128 of c. Its tiles wait in shared memory as lines along K, whatever their order outside: the next
// ones are in registers while a tile is multiplied. Lines of 64 bytes and 16 more keep the words of a fragment in different
// banks.
//
//   -DA_VECTOR, B_VECTOR=1 or 16   bytes per access; 16: K is contiguous and every line starts at a multiple of it
#include "int8_products.cuh"

constexpr int BLOCK = 128, BLOCK_K = 64, PITCH = BLOCK_K + 16, THREADS = 256;
constexpr int PIECES = BLOCK * BLOCK_K / 16 / THREADS;  // of 16 bytes, of each operand, in one thread

struct Strides {
    i64 line, k;  // in bytes, which are elements
};

// Sixteen neighbours along K of one line; zeros outside.
template <int Vector>
__device__ __forceinline__ uint4 piece(const signed char* x, Strides s, int line, int k, int lines, int K) {
    const signed char* from = x + line * s.line + k * s.k;
    if constexpr (Vector == 16) return line < lines && k < K ? __ldg(reinterpret_cast<const uint4*>(from)) : uint4{};
    unsigned words[4] = {};
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (line < lines && k + i < K) words[i / 4] |= (unsigned)(unsigned char)from[i * s.k] << (i % 4 * 8);
    return {words[0], words[1], words[2], words[3]};
}

template <int Vector>
__device__ __forceinline__ void fetch(
    uint4 (&held)[PIECES], const signed char* x, Strides s, int first, int k, int lines, int K) {
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        // Neighbouring threads are neighbours where the memory is contiguous.
        const int unit = threadIdx.x + i * THREADS;
        const int line = s.k == 1 ? unit / (BLOCK_K / 16) : unit % BLOCK, part = s.k == 1 ? unit % (BLOCK_K / 16) : unit / BLOCK;
        held[i] = piece<Vector>(x, s, first + line, k + 16 * part, lines, K);
    }
}

__device__ __forceinline__ void keep(signed char* tile, const uint4 (&held)[PIECES], i64 k_stride) {
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int unit = threadIdx.x + i * THREADS;
        const int line = k_stride == 1 ? unit / (BLOCK_K / 16) : unit % BLOCK;
        const int part = k_stride == 1 ? unit % (BLOCK_K / 16) : unit / BLOCK;
        *reinterpret_cast<uint4*>(tile + line * PITCH + 16 * part) = held[i];
    }
}

__device__ __forceinline__ unsigned word(const signed char* tile, int line, int k) {
    return *reinterpret_cast<const unsigned*>(tile + line * PITCH + k);
}

__device__ __forceinline__ void multiply(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A warp's 64 x 32 of the block: rows m.. of a, lines n.. of b.
__device__ __forceinline__ void multiply_tile(int (&sum)[4][4][4], const signed char* a, const signed char* b, int m, int n) {
    const int group = threadIdx.x % 32 / 4, k = threadIdx.x % 4 * 4;
#pragma unroll
    for (int step = 0; step < BLOCK_K; step += 32) {
        unsigned right[4][2];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) right[j][i] = word(b, n + 8 * j + group, step + k + 16 * i);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned left[4];
#pragma unroll
            for (int q = 0; q < 4; q++) left[q] = word(a, m + 16 * i + group + q % 2 * 8, step + k + q / 2 * 16);
#pragma unroll
            for (int j = 0; j < 4; j++) multiply(sum[i][j], left, right[j][0], right[j][1]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    int8_matmul_tensor_cores(const signed char* __restrict__ a, const signed char* __restrict__ b,
                             const float* __restrict__ scale_a, const float* __restrict__ scale_b, Output* __restrict__ c,
                             int M, int N, int K, i64 a_m, i64 a_k, i64 b_k, i64 b_n) {
    __shared__ __align__(16) signed char tiles[2][BLOCK * PITCH];
    const Tile tile = grouped_tile(blockIdx.x, cdiv(M, BLOCK), cdiv(N, BLOCK));
    const int warp = threadIdx.x / 32, m = warp / 4 * 64, n = warp % 4 * 32;
    const Strides of_a = {a_m, a_k}, of_b = {b_n, b_k};
    uint4 left[PIECES], right[PIECES];
    int sum[4][4][4] = {};
    fetch<A_VECTOR>(left, a, of_a, tile.m * BLOCK, 0, M, K);
    fetch<B_VECTOR>(right, b, of_b, tile.n * BLOCK, 0, N, K);
    for (int k = 0; k < K; k += BLOCK_K) {
        __syncthreads();
        keep(tiles[0], left, a_k);
        keep(tiles[1], right, b_k);
        __syncthreads();
        if (k + BLOCK_K < K) {
            fetch<A_VECTOR>(left, a, of_a, tile.m * BLOCK, k + BLOCK_K, M, K);
            fetch<B_VECTOR>(right, b, of_b, tile.n * BLOCK, k + BLOCK_K, N, K);
        }
        multiply_tile(sum, tiles[0], tiles[1], m, n);
    }
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int row = tile.m * BLOCK + m + 16 * i + lane / 4 + q / 2 * 8;
                const int column = tile.n * BLOCK + n + 8 * j + lane % 4 * 2 + q % 2;
                if (row >= M || column >= N) continue;
                const float left = scale_of(scale_a, row * SCALES_A), right = scale_of(scale_b, column * SCALES_B);
                c[(i64)row * N + column] = ended<Output>(sum[i][j][q], left, right);
            }
}
