// Few rows of fp32 on the FP32 pipes behind cp.async: stages of both operands as they lie in memory, lines of 32 k's. A
// thread reads four k's of a line at once; the lanes that share a pass read lines whose groups of four k's changed places,
// so that each has banks of its own.
//
// Blocks share the K of a tile: their sums become parts, which `..._sum` adds in order.
#include "matmul.cuh"
#include "tensor_cores.cuh"

#ifndef A_VECTOR  // elements per copy; divides the leading dimension, the contiguous extent and the address
#define A_VECTOR 1
#endif
#ifndef B_VECTOR
#define B_VECTOR 1
#endif
#ifndef THREAD_M  // rows of c per thread
#define THREAD_M 4
#endif
#ifndef LANES_M  // of a warp, down the rows
#define LANES_M 2
#endif
#ifndef WARPS  // side by side
#define WARPS 4
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 3
#endif
#ifndef SPLIT  // K, over blocks
#define SPLIT 0
#endif

constexpr int THREAD_N = 4, LANES_N = 32 / LANES_M, BLOCK_M = LANES_M * THREAD_M, WARP_N = LANES_N * THREAD_N;
constexpr int BLOCK_N = WARPS * WARP_N, BLOCK_K = 32, THREADS = 32 * WARPS, SUMS = THREAD_M * THREAD_N;

// An Extent x BLOCK_K tile of an operand in shared memory, and this thread's place in the walk along K.
template <int Extent, int Width>
struct Lines {
    static constexpr int PerLine = BLOCK_K / Width, Hop = THREADS / PerLine, Count = cdiv(Extent, Hop);

    const float* from;
    i64 ld;
    int line, unit, mn, k;

    __device__ __forceinline__ Lines(const float* x, i64 ld, int mn0, int k0)
        : from(x + (mn0 + threadIdx.x / PerLine) * ld + k0 + threadIdx.x % PerLine * Width),
          ld(ld),
          line(threadIdx.x / PerLine),
          unit(threadIdx.x % PerLine * Width),
          mn(mn0 + line),
          k(k0 + unit) {}

    static __device__ __forceinline__ int place(int line, int k) { return line * BLOCK_K + (k ^ (line % 8 * 4)); }

    __device__ __forceinline__ void copy(unsigned to, int extent, int K) {
#pragma unroll
        for (int i = 0; i < Count; i++)
            if (Extent % Hop == 0 || line + i * Hop < Extent)
                copy_async<4 * Width>(to + 4 * place(line + i * Hop, unit), from + i * Hop * ld,
                                      mn + i * Hop < extent && k < K);
        from += BLOCK_K;
        k += BLOCK_K;
    }

    // Four k's of lines `Apart` from one another.
    template <int Apart, int Values>
    static __device__ __forceinline__ void read(float (&x)[4][Values], const float* tile, int k, int first) {
#pragma unroll
        for (int i = 0; i < Values; i++) {
            const float4 v = *reinterpret_cast<const float4*>(tile + place(first + i * Apart, k));
            x[0][i] = v.x, x[1][i] = v.y, x[2][i] = v.z, x[3][i] = v.w;
        }
    }
};

// The first row and column of this thread in a tile; the others are LANES_M and LANES_N apart.
__device__ __forceinline__ int first_row() { return threadIdx.x % 32 / LANES_N; }
__device__ __forceinline__ int first_column() { return threadIdx.x / 32 * WARP_N + threadIdx.x % LANES_N; }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_copied_tiles(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ parts,
                        float* __restrict__ c EPILOGUE_PARAMETERS(float), int M, int N, int K, i64 lda, i64 ldb, int shares,
                        int k_share) {
    static_assert(A_K_MAJOR && B_K_MAJOR, "lines are along K");
    constexpr int Stage = (BLOCK_M + BLOCK_N) * BLOCK_K;
    extern __shared__ __align__(128) float stages[];
    const Tile tile = grouped_tile(blockIdx.x / shares, cdiv(M, BLOCK_M), cdiv(N, BLOCK_N));
    const int m0 = tile.m * BLOCK_M, n0 = tile.n * BLOCK_N, row = first_row(), column = first_column();
    const int begin = blockIdx.x % shares * k_share, end = min(K, begin + k_share);
    Lines<BLOCK_M, A_VECTOR> a_lines(a, lda, m0, begin);
    Lines<BLOCK_N, B_VECTOR> b_lines(b, ldb, n0, begin);
    const unsigned base = (unsigned)__cvta_generic_to_shared(stages);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        a_lines.copy(base + 4 * i * Stage, M, end);
        b_lines.copy(base + 4 * (i * Stage + BLOCK_M * BLOCK_K), N, end);
        copy_async_commit();
    }
    float sum[THREAD_M][THREAD_N] = {};
    int stage = 0, ahead = STAGES - 1;
    for (int k0 = begin; k0 < end; k0 += BLOCK_K) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // the stage that is filled now was last read in the step before
        a_lines.copy(base + 4 * ahead * Stage, M, end);
        b_lines.copy(base + 4 * (ahead * Stage + BLOCK_M * BLOCK_K), N, end);
        copy_async_commit();
        const float* from = stages + stage * Stage;
#pragma unroll
        for (int k = 0; k < BLOCK_K; k += 4) {
            float x[4][THREAD_M], y[4][THREAD_N];
            a_lines.template read<LANES_M>(x, from, k, row);
            b_lines.template read<LANES_N>(y, from + BLOCK_M * BLOCK_K, k, column);
#pragma unroll
            for (int v = 0; v < 4; v++)
#pragma unroll
                for (int i = 0; i < THREAD_M; i++)
#pragma unroll
                    for (int j = 0; j < THREAD_N; j++) sum[i][j] = fma_gradual(x[v][i], y[v][j], sum[i][j]);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        ahead = ahead + 1 == STAGES ? 0 : ahead + 1;
    }
    const Epilogue<float> epilogue = EPILOGUE(float);
    if constexpr (SPLIT) parts += (i64)blockIdx.x * SUMS * THREADS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < THREAD_M; i++)
#pragma unroll
        for (int j = 0; j < THREAD_N; j++) {
            const int m = m0 + row + i * LANES_M, n = n0 + column + j * LANES_N;
            if constexpr (SPLIT) parts[(i * THREAD_N + j) * THREADS] = sum[i][j];
            else if (m < M && n < N) epilogue.store(c, (i64)m * N + n, n, {sum[i][j]});
        }
}

// Adds the parts of a row of each thread of a tile in the order of K, and ends it.
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_copied_tiles_sum(const float* __restrict__ parts, float* __restrict__ c EPILOGUE_PARAMETERS(float), int M, int N,
                            int shares) {
    const int index = blockIdx.x / THREAD_M, i = blockIdx.x % THREAD_M;
    const Tile tile = grouped_tile(index, cdiv(M, BLOCK_M), cdiv(N, BLOCK_N));
    const int m = tile.m * BLOCK_M + first_row() + i * LANES_M;
    parts += ((i64)index * shares * SUMS + i * THREAD_N) * THREADS + threadIdx.x;
    float sum[THREAD_N] = {};
#pragma unroll 4
    for (int s = 0; s < shares; s++)
#pragma unroll
        for (int j = 0; j < THREAD_N; j++) sum[j] = add_gradual(sum[j], parts[((i64)s * SUMS + j) * THREADS]);
#pragma unroll
    for (int j = 0; j < THREAD_N; j++) {
        const int n = tile.n * BLOCK_N + first_column() + j * LANES_N;
        if (m < M && n < N) EPILOGUE(float).store(c, (i64)m * N + n, n, {sum[j]});
    }
}
