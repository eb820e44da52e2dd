// What the matmul kernels on Hopper's asynchronous tensor cores share: a ring of tiles in shared memory that one
// warpgroup fills, and the others, which multiply it straight from there.
#pragma once
#include "matmul.cuh"
#include "warpgroup.cuh"

#ifndef BLOCK_N
#define BLOCK_N 256
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef HEIGHT  // of 64 rows: a consumer's
#define HEIGHT 1
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef PAIRED  // two blocks side by side, a cluster, have the same rows of a: each fetches half of them for both
#define PAIRED 0
#endif

constexpr int BLOCK_M = 64 * CONSUMERS * HEIGHT, BLOCK_K = 128 / sizeof(Element);  // the widest swizzle
constexpr int THREADS = 128 * (1 + CONSUMERS), PEERS = PAIRED ? 2 : 1;
constexpr int BOX_BYTES = 64 * 128;  // 64 lines of 128 bytes: 64 rows if K-major, else 64 k's of 64 columns
constexpr int A_BYTES = BLOCK_M / 64 * BOX_BYTES, STAGE_BYTES = A_BYTES + cdiv(BLOCK_N, 64) * BOX_BYTES;
constexpr int LINE_N = 128 / sizeof(Output);                   // columns of a whole cache line
constexpr int STRIP_N = BLOCK_N % LINE_N == 0 ? LINE_N : LINE_N / 2;
constexpr int STRIP_BYTES = Strip<STRIP_N>::Bytes * 4 * CONSUMERS;
static_assert(CONSUMERS <= 2, "three times 128 accumulators and what else it takes do not fit into 65536 registers");
static_assert(BLOCK_N % STRIP_N == 0, "a tile leaves in whole strips");

#define NAMES_160 FIFTY TEN(5) TEN(6) "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SUMS_160 SUMS_128, SIXTEEN_SUMS(16)
SHARED_PRODUCT(160, 16, "f16", __half, 80, 81, 82, ", %83, %84")
SHARED_PRODUCT(160, 16, "bf16", __nv_bfloat16, 80, 81, 82, ", %83, %84")
SHARED_PRODUCT(160, 8, "tf32", float, 80, 81, 82, "")

#if PAIRED
#define PAIR __cluster_dims__(2, 1, 1)
#else
#define PAIR
#endif

// Waits for the other block of a pair: nobody may write into, or have left, shared memory that the other uses.
__device__ __forceinline__ void pair_sync() {
    if constexpr (PAIRED) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    }
}

// Arrives at a barrier of this block, or of its peer.
__device__ __forceinline__ void barrier_arrive_at(bool mine, Barrier& barrier, int rank) {
    asm volatile(
        "{ .reg .pred p; .reg .b32 there; setp.ne.b32 p, %1, 0; mapa.shared::cluster.u32 there, %0, %2; "
        "@p mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(&barrier)),
        "r"((int)mine), "r"(rank)
        : "memory");
}

// The ring: a stage is full when its bytes have landed, empty when all consumer warps, of both blocks of a pair, have
// multiplied it.
struct Ring {
    unsigned char* stages;
    Barrier *full, *empty;

    // Shared memory: the stages, a strip per consumer warp, the barriers.
    __device__ __forceinline__ explicit Ring(unsigned char* shared) : stages(shared) {
        full = reinterpret_cast<Barrier*>(stages + STAGES * STAGE_BYTES + STRIP_BYTES);
        empty = full + STAGES;
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) barrier_init(full[i], 1), barrier_init(empty[i], 4 * CONSUMERS * PEERS);
            barrier_init_fence();
        }
        __syncthreads();
        pair_sync();
    }

    __device__ __forceinline__ unsigned char* a(int stage) const { return stages + stage * STAGE_BYTES; }
    __device__ __forceinline__ unsigned char* b(int stage) const { return a(stage) + A_BYTES; }

    // Called by whole warps.
    __device__ __forceinline__ void release(int stage) const {
        if constexpr (PAIRED) barrier_arrive_at(threadIdx.x % 32 < PEERS, empty[stage], threadIdx.x % PEERS);
        else barrier_arrive_if(threadIdx.x % 32 == 0, empty[stage]);
    }
};

using Place = RingPlace<STAGES>;

// Of every product; k_split is a multiple of BLOCK_K, or K.
struct Sizes {
    int M, N, K, k_split, products;
};

// One tile of a product, or one split of it; works 2 i and 2 i + 1 of pairs are side by side, the second perhaps outside
// of c. slice: which [M, N] of the output.
struct Work {
    int m, n, product, slice, k_begin, k_end;

    __device__ __forceinline__ Work(int index, const Sizes& sizes) {
        const int tiles_m = cdiv(sizes.M, BLOCK_M), tiles_n = cdiv(sizes.N, BLOCK_N * PEERS), group = index / PEERS;
        const Tile tile = grouped_tile(group % (tiles_m * tiles_n), tiles_m, tiles_n);
        m = tile.m * BLOCK_M;
        n = (tile.n * PEERS + index % PEERS) * BLOCK_N;
        slice = group / (tiles_m * tiles_n);
        product = BATCHED ? slice % sizes.products : 0;
        k_begin = (BATCHED ? slice / sizes.products : slice) * sizes.k_split;
        k_end = min(sizes.K, k_begin + sizes.k_split);
    }
};

// A step is 32 bytes of K: part of every line if K-major, otherwise 16 lines.
template <bool KMajor>
__device__ __forceinline__ Descriptor describe(const unsigned char* tile, int step) {
    return matrix_descriptor(tile + step * (KMajor ? 32 : 16 * 128), BOX_BYTES);
}

using Sums = float[HEIGHT][BLOCK_N / 8][4];

// The products of one stage stay under way while the next one is awaited; a stage is given back one step late.
__device__ __forceinline__ void multiply(Sums& sum, const Ring& ring, Place& place, const Work& work) {
    int previous = -1;
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        const unsigned char* a = ring.a(place.stage) + (threadIdx.x / 128 - 1) * HEIGHT * BOX_BYTES;
        const unsigned char* b = ring.b(place.stage);
        barrier_wait(ring.full[place.stage], place.phase);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 128 / 32; step++)
#pragma unroll
            for (int i = 0; i < HEIGHT; i++)
                wgmma<A_K_MAJOR, B_K_MAJOR>(sum[i], describe<A_K_MAJOR>(a + i * BOX_BYTES, step), describe<B_K_MAJOR>(b, step),
                                            k > work.k_begin || step > 0, Element());
        wgmma_commit();
        wgmma_wait<1>();
        if (previous >= 0) ring.release(previous);
        previous = place.stage;
        place.advance();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < HEIGHT; i++) pin(sum[i]);
    ring.release(previous);
}

// What a consumer warp does from beginning to end: the works i, i + gridDim.x, ... of the block.
__device__ __forceinline__ void consume(const Ring& ring, Output* c, const Epilogue<Output>& epilogue, const Sizes& sizes,
                                        int works) {
    const int warp = threadIdx.x / 32 - 4;
    Output* strip = reinterpret_cast<Output*>(ring.stages + STAGES * STAGE_BYTES + warp * Strip<STRIP_N>::Bytes);
    Sums sum = {};
    Place place;
    for (int i = blockIdx.x; i < works; i += gridDim.x) {
        const Work work(i, sizes);
        multiply(sum, ring, place, work);
        Output* slice = c + (i64)work.slice * sizes.M * sizes.N;
#pragma unroll
        for (int i = 0; i < HEIGHT; i++)
#pragma unroll
            for (int n = 0; n < BLOCK_N; n += STRIP_N)
                Strip<STRIP_N>::store_out(strip, sum[i] + n / 8, slice, epilogue,
                                          work.m + (warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16, work.n + n, sizes.M, sizes.N);
    }
}
