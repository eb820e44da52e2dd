// conv2d and its gradients on Hopper's asynchronous tensor cores: the next tiles are gathered while wgmma multiplies
// those that have come, straight from swizzled shared memory, so that finding the elements costs no time of the tensor
// cores.
#include "convolution_halves.cuh"
#include "warpgroup.cuh"

constexpr int GROUPS = BLOCK_M / 64, THREADS = 128 * GROUPS;  // a warpgroup per 64 rows

// A step is 32 bytes of K: part of every line if K-major, else 16 lines.
template <bool KMajor>
__device__ __forceinline__ Descriptor describe(const unsigned char* tile, int step) {
    return matrix_descriptor(tile + step * (KMajor ? 32 : 16 * LINE), BOX_BYTES);
}

// left [M, K], right [N, K], out [M, N] as `Product` says; blocks (tile of a phase, piece of K).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_implicit_gemm_wgmma(const Element* __restrict__ left, const Element* __restrict__ right,
                               const Element* __restrict__ bias, Output* __restrict__ out,
                               const __grid_constant__ Convolution c) {
    extern __shared__ __align__(1024) unsigned char shared[];  // STAGES x STAGE_BYTES, then the tables
    Lookup& tables = *reinterpret_cast<Lookup*>(shared + STAGES * STAGE_BYTES);
    const Product product(c, phase_of_block(c));
    const Work<BLOCK_M, BLOCK_N> work(product);
    if (!work.any) return;
    const int warp = threadIdx.x / 32, group = warp / 4, tiles = cdiv(work.k_end - work.k_begin, BLOCK_K);
    const auto fill = [&](int t) { tables.template fill_k<THREADS>(product, t, work.k_begin, work.k_end); };
    const auto issue = [&](int t) {
        const unsigned stage = shared_address(shared) + t % STAGES * STAGE_BYTES;
        if (t < tiles) load_stage<THREADS>(stage, left, right, tables, product, t);
        copy_async_commit();  // an empty group keeps the count
    };
    tables.template fill_rows<THREADS>(product, work.m0, work.n0);
    fill(0);
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < STAGES - 2; t++) {
        issue(t);
        fill(t + 1);
        __syncthreads();
    }
    float sum[BLOCK_N / 8][4] = {};
    for (int t = 0; t < tiles; t++) {
        const unsigned char* stage = shared + t % STAGES * STAGE_BYTES;
        copy_async_wait<STAGES - 3>();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma reads what this thread wrote
        __syncthreads();
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < BLOCK_K * 2 / 32; step++)
            wgmma<LEFT_K_MAJOR, RIGHT_K_MAJOR>(sum, describe<LEFT_K_MAJOR>(stage + group * BOX_BYTES, step),
                                               describe<RIGHT_K_MAJOR>(stage + LEFT_BYTES, step), true, Element());
        wgmma_commit();
        // Both warpgroups had finished tile t - 2 when they came to the barrier: its stage takes the tile STAGES - 2
        // ahead.
        issue(t + STAGES - 2);
        fill(t + STAGES - 1);
        wgmma_wait<1>();
    }
    wgmma_wait<0>(sum);
    copy_async_wait<0>();
    __syncthreads();
    float* staged = reinterpret_cast<float*>(shared);
    stage_sums(staged, sum, warp * 16, 0);
    __syncthreads();
    store_staged<THREADS>(staged, product, work, Result(out, bias, c));
}
