// Products of 8-bit operands on Hopper's asynchronous tensor cores: c[M, N] = a[M, K] b[K, N], K contiguous in both.
//
// One thread of the producer warpgroup keeps a ring of STAGES tiles filled through TMA; two consumer warpgroups multiply
// 64 x BLOCK_N of every stage each, straight from swizzled shared memory. Blocks are persistent: the next tile of c travels
// while the last one is stored. TMA reads zeros outside an operand, so ragged extents need no code here.
#pragma once
#include "matmul.cuh"
#include "warpgroup.cuh"

#ifndef BLOCK_N
#define BLOCK_N 128
#endif
#ifndef STAGES
#define STAGES 4
#endif

constexpr int CONSUMERS = 2, BLOCK_M = 64 * CONSUMERS, BLOCK_K = 128;  // the widest swizzle
constexpr int THREADS = 128 * (1 + CONSUMERS);
constexpr int A_BYTES = BLOCK_M * BLOCK_K, STAGE_BYTES = A_BYTES + BLOCK_N * BLOCK_K;

// A stage is full when its bytes have landed, empty when all consumer warps have multiplied it.
struct Ring {
    unsigned char* stages;
    Barrier *full, *empty;
    RingPlace<STAGES> place;

    __device__ __forceinline__ Ring(unsigned char* stages, Barrier* barriers)
        : stages(stages), full(barriers), empty(barriers + STAGES) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) barrier_init(full[i], 1), barrier_init(empty[i], 4 * CONSUMERS);
            barrier_init_fence();
        }
        __syncthreads();
    }

    __device__ __forceinline__ void produce(const TensorMap& a, const TensorMap& b, int m, int n, int K) {
        for (int k = 0; k < K; k += BLOCK_K) {
            unsigned char* stage = stages + place.stage * STAGE_BYTES;
            barrier_wait(empty[place.stage], place.phase ^ 1);
            barrier_expect(full[place.stage], STAGE_BYTES);
            tma_load(stage, a, full[place.stage], k, m);
            tma_load(stage + A_BYTES, b, full[place.stage], k, n);
            place.advance();
        }
    }

    __device__ __forceinline__ void await() const { barrier_wait(full[place.stage], place.phase); }

    // Called by whole warps.
    __device__ __forceinline__ void release(int stage) const { barrier_arrive_if(threadIdx.x % 32 == 0, empty[stage]); }

    // 32 bytes of K of this warpgroup's rows, or of all columns.
    __device__ __forceinline__ Descriptor a(int step) const {
        return matrix_descriptor(stages + place.stage * STAGE_BYTES + (threadIdx.x / 128 - 1) * 64 * BLOCK_K + step * 32, 0);
    }
    __device__ __forceinline__ Descriptor b(int step) const {
        return matrix_descriptor(stages + place.stage * STAGE_BYTES + A_BYTES + step * 32, 0);
    }
};

// Runs `produce` in the first thread and consume(tile, warp) in the consumers, for each tile of this block.
template <typename Consume>
__device__ __forceinline__ void for_each_tile(
    Ring& ring, const TensorMap& a, const TensorMap& b, int M, int N, int K, Consume consume) {
    const int tiles_m = cdiv(M, BLOCK_M), tiles_n = cdiv(N, BLOCK_N);
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int i = blockIdx.x; i < tiles_m * tiles_n; i += gridDim.x) {
                const Tile tile = grouped_tile(i, tiles_m, tiles_n);
                ring.produce(a, b, tile.m * BLOCK_M, tile.n * BLOCK_N, K);
            }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        for (int i = blockIdx.x; i < tiles_m * tiles_n; i += gridDim.x) {
            const Tile tile = grouped_tile(i, tiles_m, tiles_n);
            consume(tile.m * BLOCK_M + (threadIdx.x / 32 - 4) * 16, tile.n * BLOCK_N);
        }
    }
}

template <int Count>
__device__ __forceinline__ void pin(int (&d)[Count][4]) {
#pragma unroll
    for (int i = 0; i < 4 * Count; i++) asm volatile("" : "+r"(d[i / 4][i % 4])::"memory");
}

// Starts the products of a stage: multiply(d, a, b, add) is one, of 32 bytes of K; not `add` starts a new sum.
template <typename Sums, typename Multiply>
__device__ __forceinline__ void multiply_stage(Sums& d, const Ring& ring, bool add, Multiply multiply) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_K / 32; step++) multiply(d, ring.a(step), ring.b(step), add || step > 0);
    wgmma_commit();
}

// All of K in the accumulator of the tensor cores. The products of one stage stay under way while the next one is awaited; a
// stage is given back one step late.
template <typename Sums, typename Multiply>
__device__ __forceinline__ void accumulate(Sums& sum, Ring& ring, int K, Multiply multiply) {
    int previous = -1;
    for (int k = 0; k < K; k += BLOCK_K) {
        ring.await();
        multiply_stage(sum, ring, k > 0, multiply);
        wgmma_wait<1>();
        if (previous >= 0) ring.release(previous);
        previous = ring.place.stage;
        ring.place.advance();
    }
    wgmma_wait<0>();
    pin(sum);
    ring.release(previous);
}
