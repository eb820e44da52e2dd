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
#ifndef ACROSS  // blocks of a cluster that lie side by side and have the same rows of a: each fetches its share for all
#define ACROSS 1
#endif
#ifndef DOWN  // blocks of a cluster that lie below one another and have the same columns of b: likewise
#define DOWN 1
#endif
#ifndef SHARES  // groups of such blocks that a cluster has, each with a share of K
#define SHARES 1
#endif
#ifndef STRIPS_IN_RING  // the way out takes a stage of the ring for its strips, in place of shared memory of their own
#define STRIPS_IN_RING 0
#endif

#ifndef OWN_LAST  // the last BLOCK_N % 64 columns of b come through a map of their own, so that no others are read
#define OWN_LAST 0
#endif
#ifndef TAP_K  // of K: the channels of a tap, rounded up to whole steps. Behind the last channel all is zero: of the last
#define TAP_K 1  // step of a tap only so many products of 32 bytes of K are made
#define TAP_PRODUCTS 4
#endif

constexpr int BLOCK_M = 64 * CONSUMERS * HEIGHT, BLOCK_K = 128 / sizeof(Element);  // the widest swizzle
constexpr int THREADS = 128 * (1 + CONSUMERS), PEERS = ACROSS * DOWN;
constexpr int BOX_BYTES = 64 * 128;  // 64 lines of 128 bytes: 64 rows if K-major, else 64 k's of 64 columns
constexpr int A_BYTES = BLOCK_M / 64 * BOX_BYTES;
constexpr int B_BYTES = B_K_MAJOR ? BLOCK_N * 128 : cdiv(BLOCK_N, 64) * BOX_BYTES, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int LOADED_BYTES = OWN_LAST ? A_BYTES + BLOCK_N * 128 : STAGE_BYTES;
// An instruction has at most 256 columns. Of more, the first half in whole boxes is one product, what is right of it another.
constexpr bool TWO_PRODUCTS = BLOCK_N > 256;
constexpr int LEFT_N = TWO_PRODUCTS ? BLOCK_N / 128 * 64 : BLOCK_N, RIGHT_N = TWO_PRODUCTS ? BLOCK_N - LEFT_N : LEFT_N;
constexpr int LINE_N = 128 / sizeof(Output);                   // columns of a whole cache line
constexpr int NARROW_N = BLOCK_N % (LINE_N / 4 * 3) == 0 ? LINE_N / 4 * 3 : BLOCK_N % (LINE_N / 4) == 0 ? LINE_N / 4 : 8;
constexpr int PART_N = BLOCK_N % (LINE_N / 2) == 0 ? LINE_N / 2 : NARROW_N;
constexpr int STRIP_N = BLOCK_N % LINE_N == 0 ? LINE_N : BLOCK_N < PART_N ? BLOCK_N : PART_N;
constexpr int STRIP_BYTES = Strip<STRIP_N>::Bytes * 4 * CONSUMERS;
static_assert(CONSUMERS <= 2 || (CONSUMERS == 3 && HEIGHT * BLOCK_N <= 192),
              "three times 128 accumulators and what else it takes do not fit into 65536 registers");
static_assert(BLOCK_N % STRIP_N == 0, "a tile leaves in whole strips");

#define NAMES_96 TEN() TEN(1) TEN(2) TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47"
#define SUMS_96 SUMS_64, SIXTEEN_SUMS(8)
SHARED_PRODUCT(96, 16, "f16", __half, 48, 49, 50, ", %51, %52")
SHARED_PRODUCT(96, 16, "bf16", __nv_bfloat16, 48, 49, 50, ", %51, %52")
SHARED_PRODUCT(96, 8, "tf32", float, 48, 49, 50, "")
#define NAMES_112 FIFTY "%50, %51, %52, %53, %54, %55"
#define SUMS_112 SUMS_96, FOUR_SUMS(12), FOUR_SUMS(13)
SHARED_PRODUCT(112, 16, "f16", __half, 56, 57, 58, ", %59, %60")
SHARED_PRODUCT(112, 16, "bf16", __nv_bfloat16, 56, 57, 58, ", %59, %60")
#define NAMES_144 FIFTY TEN(5) TEN(6) "%70, %71"
#define SUMS_144 SUMS_128, FOUR_SUMS(16), FOUR_SUMS(17)
SHARED_PRODUCT(144, 16, "f16", __half, 72, 73, 74, ", %75, %76")
SHARED_PRODUCT(144, 16, "bf16", __nv_bfloat16, 72, 73, 74, ", %75, %76")
#define NAMES_160 FIFTY TEN(5) TEN(6) "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SUMS_160 SUMS_128, SIXTEEN_SUMS(16)
SHARED_PRODUCT(160, 16, "f16", __half, 80, 81, 82, ", %83, %84")
SHARED_PRODUCT(160, 16, "bf16", __nv_bfloat16, 80, 81, 82, ", %83, %84")
SHARED_PRODUCT(160, 8, "tf32", float, 80, 81, 82, "")
#define NAMES_208 FIFTY TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) "%100, %101, %102, %103"
#define SUMS_208 SUMS_192, FOUR_SUMS(24), FOUR_SUMS(25)
SHARED_PRODUCT(208, 16, "f16", __half, 104, 105, 106, ", %107, %108")
SHARED_PRODUCT(208, 16, "bf16", __nv_bfloat16, 104, 105, 106, ", %107, %108")
#define NAMES_224 FIFTY TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) "%110, %111"
#define SUMS_224 SUMS_192, SIXTEEN_SUMS(24)
SHARED_PRODUCT(224, 16, "f16", __half, 112, 113, 114, ", %115, %116")
SHARED_PRODUCT(224, 16, "bf16", __nv_bfloat16, 112, 113, 114, ", %115, %116")
#define NAMES_240 \
    FIFTY TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119"
#define SUMS_240 SUMS_224, FOUR_SUMS(28), FOUR_SUMS(29)
SHARED_PRODUCT(240, 16, "f16", __half, 120, 121, 122, ", %123, %124")
SHARED_PRODUCT(240, 16, "bf16", __nv_bfloat16, 120, 121, 122, ", %123, %124")

#if ACROSS * DOWN > 1
#define CLUSTER __cluster_dims__(ACROSS * DOWN, 1, 1)
#else
#define CLUSTER
#endif

// Registers go from the warpgroup that fetches to those that multiply.
__device__ __forceinline__ void fetches() {
    if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if constexpr (CONSUMERS == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
}
__device__ __forceinline__ void multiplies() {
    if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    if constexpr (CONSUMERS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
}

// Waits for the other blocks of a cluster: none may write into, or have left, shared memory that another uses.
__device__ __forceinline__ void cluster_sync() {
    if constexpr (PEERS > 1) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    }
}

// Where a block is among those that fetch together, of which the first one of the cluster has the rank `first`.
struct Seat {
    int x, y, first;

    __device__ __forceinline__ Seat()
        : x(blockIdx.x % PEERS % ACROSS), y(blockIdx.x % PEERS / ACROSS), first(blockIdx.x % (PEERS * SHARES) / PEERS * PEERS) {}
};

// A box that nothing reads again: it is the first to leave L2, and displaces nothing that has to be written back before.
__device__ __forceinline__ void tma_load_once(void* to, const TensorMap& map, Barrier& barrier, int x, int y) {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
        "l"(&map), "r"(shared_address(&barrier)), "r"(x), "r"(y), "l"(policy)
        : "memory");
}

// A box for those blocks of the cluster whose bits are set, at the same place of their shared memory; the barrier of each
// counts the bytes.
__device__ __forceinline__ void tma_load_for(unsigned mask, void* to, const TensorMap& map, Barrier& barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
        "l"(&map), "r"(shared_address(&barrier)), "r"(x), "r"(y), "h"((short)mask)
        : "memory");
}

// The ring: a stage is full when its bytes have landed, empty when all consumer warps, also of the blocks that get parts of
// it from this one, have multiplied it.
struct Ring {
    unsigned char* stages;
    Barrier *full, *empty;

    // Shared memory: the stages, a strip per consumer warp, the barriers.
    __device__ __forceinline__ explicit Ring(unsigned char* shared) : stages(shared) {
        full = reinterpret_cast<Barrier*>(stages + STAGES * STAGE_BYTES + (STRIPS_IN_RING ? 0 : STRIP_BYTES));
        empty = full + STAGES;
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) barrier_init(full[i], 1), barrier_init(empty[i], 4 * CONSUMERS * (ACROSS + DOWN - 1));
            barrier_init_fence();
        }
        __syncthreads();
        cluster_sync();
    }

    __device__ __forceinline__ unsigned char* a(int stage) const { return stages + stage * STAGE_BYTES; }
    __device__ __forceinline__ unsigned char* b(int stage) const { return a(stage) + A_BYTES; }

    // Called by whole warps.
    __device__ __forceinline__ void release(int stage) const {
        if constexpr (PEERS > 1) {  // lanes below ACROSS: the blocks of the same row; then the others of the same column
            const int lane = threadIdx.x % 32;
            const Seat seat;
            const int rank = lane < ACROSS ? seat.y * ACROSS + lane : (seat.y + lane - ACROSS + 1) % DOWN * ACROSS + seat.x;
            barrier_arrive_at(lane < ACROSS + DOWN - 1, empty[stage], seat.first + rank);
        } else {
            barrier_arrive_if(threadIdx.x % 32 == 0, empty[stage]);
        }
    }
};

using Place = RingPlace<STAGES>;

// Of every product; k_split is a multiple of BLOCK_K, or K.
struct Sizes {
    int M, N, K, k_split, products;
};

// One tile of a product, or one split of it; those of a cluster have consecutive works, some perhaps outside of c.
// slice: which [M, N] of the output.
struct Work {
    int m, n, product, slice, k_begin, k_end;

    __device__ __forceinline__ Work(int index, const Sizes& sizes) {
        const int tiles_m = cdiv(sizes.M, BLOCK_M * DOWN), tiles_n = cdiv(sizes.N, BLOCK_N * ACROSS), group = index / PEERS;
        const Tile tile = grouped_tile(group % (tiles_m * tiles_n), tiles_m, tiles_n);
        m = (tile.m * DOWN + index % PEERS / ACROSS) * BLOCK_M;
        n = (tile.n * ACROSS + index % PEERS % ACROSS) * BLOCK_N;
        slice = group / (tiles_m * tiles_n);
        product = BATCHED ? slice % sizes.products : 0;
        k_begin = (BATCHED ? slice / sizes.products : slice) * sizes.k_split;
        if constexpr (IN_TURN) k_begin -= product * (16 / sizeof(Element));  // odd rows too from multiples of 32 bytes on
        k_end = min(sizes.K, k_begin + sizes.k_split);
    }
};

// A step is 32 bytes of K: part of every line if K-major, otherwise 16 lines.
template <bool KMajor>
__device__ __forceinline__ Descriptor describe(const unsigned char* tile, int step) {
    return matrix_descriptor(tile + step * (KMajor ? 32 : 16 * 128), BOX_BYTES);
}

using Sums = float[HEIGHT][BLOCK_N / 8][4];

// The sums of N of a tile's columns, from `first` on.
template <int N>
__device__ __forceinline__ float (&columns(float (&sum)[BLOCK_N / 8][4], int first))[N / 8][4] {
    return reinterpret_cast<float(&)[N / 8][4]>(sum[first / 8]);
}

// The products of one stage stay under way while the next one is awaited; a stage is given back one step late.
__device__ __forceinline__ void multiply(Sums& sum, const Ring& ring, Place& place, const Work& work) {
    int previous = -1;
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        const unsigned char* a = ring.a(place.stage) + (threadIdx.x / 128 - 1) * HEIGHT * BOX_BYTES;
        const unsigned char* b = ring.b(place.stage);
        barrier_wait(ring.full[place.stage], place.phase);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 128 / 32; step++) {
            if (step == TAP_PRODUCTS && (k + BLOCK_K) % TAP_K == 0) break;
#pragma unroll
            for (int i = 0; i < HEIGHT; i++) {
                const Descriptor rows = describe<A_K_MAJOR>(a + i * BOX_BYTES, step);
                const bool add = k > work.k_begin || step > 0;
                wgmma<A_K_MAJOR, B_K_MAJOR>(columns<LEFT_N>(sum[i], 0), rows, describe<B_K_MAJOR>(b, step), add, Element());
                if constexpr (TWO_PRODUCTS)
                    wgmma<A_K_MAJOR, B_K_MAJOR>(columns<RIGHT_N>(sum[i], LEFT_N), rows,
                                                describe<B_K_MAJOR>(b + LEFT_N * 128, step), add, Element());
            }
        }
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
    Sums sum = {};
    Place place;
    for (int i = blockIdx.x; i < works; i += gridDim.x) {
        const Work work(i, sizes);
        multiply(sum, ring, place, work);
        const i64 slices = work.slice - work.product;  // in front, of two products each if these take turns
        const i64 row = IN_TURN ? slices / 2 * (2 * sizes.M - ODD_ROWS) + work.product : (i64)work.slice * sizes.M;
        const int rows = ODD_ROWS ? sizes.M - work.product : sizes.M;
        Output* slice = c + row * sizes.N;
        Epilogue<Output> end = epilogue;
        if constexpr (IN_TURN && SAVES) end.z += row * sizes.N;
        const i64 pitch = IN_TURN ? 2 * (i64)sizes.N : sizes.N;
        unsigned char* strips = STRIPS_IN_RING ? ring.a(place.stage) : ring.stages + STAGES * STAGE_BYTES;
        Output* strip = reinterpret_cast<Output*>(strips + warp * Strip<STRIP_N>::Bytes);
        if constexpr (STRIPS_IN_RING) barrier_wait(ring.full[place.stage], place.phase);
#pragma unroll
        for (int i = 0; i < HEIGHT; i++)
#pragma unroll
            for (int n = 0; n < BLOCK_N; n += STRIP_N)
                Strip<STRIP_N>::store_out(strip, sum[i] + n / 8, slice, end,
                                          work.m + (warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16, work.n + n, rows, sizes.N, pitch);
        if constexpr (STRIPS_IN_RING) {
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy engine is next
            __syncwarp();
            ring.release(place.stage);
            place.advance();
        }
    }
}
