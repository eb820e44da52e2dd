// conv2d and its gradients on the tensor cores: mma.sync on tiles that are gathered STAGES - 1 ahead; ldmatrix feeds
// the 16 x 8 products, transposing where k is not the contiguous index.
#include "convolution_halves.cuh"

#ifndef ACROSS  // warps side by side
#define ACROSS 2
#endif

constexpr int WARPS_M = 2, WARPS_N = ACROSS, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int STEP = 16, STEPS = BLOCK_K / STEP;  // of K per mma
constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;

// The 16 x STEP piece at (mn, step) of a tile in four registers, one per quarter; the right operand has the two k's of
// the same mn side by side.
template <bool Right, bool KMajor>
__device__ __forceinline__ void load_fragment(unsigned (&x)[4], unsigned tile, int mn, int step) {
    const int lane = threadIdx.x % 32, quarter = lane / 8;
    const int at_mn = mn + (Right ? quarter / 2 : quarter % 2) * 8;
    const int at_k = step * STEP + (Right ? quarter % 2 : quarter / 2) * 8;
    if constexpr (KMajor) load_matrices<false>(x, tile + tile_offset(at_mn + lane % 8, at_k * 2));
    else load_matrices<true>(x, tile + tile_offset(at_k + lane % 8, at_mn * 2));
}

struct Fragments {
    unsigned a[WARP_M / 16][4], b[WARP_N / 16][4];

    __device__ __forceinline__ void load(unsigned stage, int m, int n, int step) {
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++) load_fragment<false, LEFT_K_MAJOR>(a[i], stage, m + 16 * i, step);
#pragma unroll
        for (int j = 0; j < WARP_N / 16; j++)
            load_fragment<true, RIGHT_K_MAJOR>(b[j], stage + LEFT_BYTES, n + 16 * j, step);
    }

    __device__ __forceinline__ void multiply(float (&sum)[WARP_M / 16][WARP_N / 8][4]) const {
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
            for (int j = 0; j < WARP_N / 8; j++)
                mma(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], Element());
    }
};

// left [M, K], right [N, K], out [M, N] as `Product` says; blocks (tile of a phase, piece of K).
extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS)
    conv2d_implicit_gemm(const Element* __restrict__ left, const Element* __restrict__ right,
                         const Element* __restrict__ bias, Output* __restrict__ out,
                         const __grid_constant__ Convolution c) {
    extern __shared__ __align__(128) unsigned char shared[];  // STAGES x STAGE_BYTES, then the tables
    Lookup& tables = *reinterpret_cast<Lookup*>(shared + STAGES * STAGE_BYTES);
    const unsigned stages = shared_address(shared);
    const Product product(c, phase_of_block(c));
    const Work<BLOCK_M, BLOCK_N> work(product);
    if (!work.any) return;
    const int warp = threadIdx.x / 32, m = warp / WARPS_N * WARP_M, n = warp % WARPS_N * WARP_N;
    const int tiles = cdiv(work.k_end - work.k_begin, BLOCK_K);
    const auto fill = [&](int t) { tables.template fill_k<THREADS>(product, t, work.k_begin, work.k_end); };
    const auto issue = [&](int t, int slot) {
        if (t < tiles) load_stage<THREADS>(stages + slot * STAGE_BYTES, left, right, tables, product, t);
        copy_async_commit();  // an empty group keeps the count
    };
    tables.template fill_rows<THREADS>(product, work.m0, work.n0);
    fill(0);
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < STAGES - 1; t++) {
        issue(t, t);
        fill(t + 1);
        __syncthreads();
    }
    float sum[WARP_M / 16][WARP_N / 8][4] = {};
    Fragments fragments[2];
    copy_async_wait<STAGES - 2>();
    __syncthreads();
    if (tiles > 0) fragments[0].load(stages, m, n, 0);
    for (int t = 0, slot = 0; t < tiles; t++) {
        const int next = slot + 1 < STAGES ? slot + 1 : 0, previous = slot ? slot - 1 : STAGES - 1;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            // The fragments of the next step load while this one multiplies, across the border of two stages too.
            if (step + 1 < STEPS) {
                fragments[(step + 1) % 2].load(stages + slot * STAGE_BYTES, m, n, step + 1);
            } else {  // the last tile loads its own once more
                copy_async_wait<STAGES - 2>();
                __syncthreads();
                fragments[0].load(stages + (t + 1 < tiles ? next : slot) * STAGE_BYTES, m, n, 0);
            }
            // All warps have left the previous tile since that barrier: its slot may take the tile STAGES - 1 ahead.
            if (step == 0) {
                issue(t + STAGES - 1, previous);
                fill(t + STAGES);
            }
            fragments[step % 2].multiply(sum);
        }
        slot = next;
    }
    copy_async_wait<0>();
    __syncthreads();
    float* staged = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int i = 0; i < WARP_M / 16; i++) stage_sums(staged, sum[i], m + 16 * i, n);
    __syncthreads();
    store_staged<THREADS>(staged, product, work, Result(out, bias, c));
}
