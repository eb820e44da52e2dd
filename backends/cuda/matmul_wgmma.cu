// matmul on Hopper's asynchronous tensor cores: one warpgroup feeds, the others multiply.
//
// One thread of the producer warpgroup keeps a ring of STAGES tiles filled through TMA; each consumer warpgroup
// multiplies 64 x BLOCK_N of every stage, straight from swizzled shared memory. Blocks are persistent: the next tile of
// c travels while the last one is stored. TMA reads zeros outside an operand, so ragged extents need no code here, and
// rounds fp32 to the nearest tf32.
#include "matmul.cuh"
#include "warpgroup.cuh"

#ifndef BLOCK_N
#define BLOCK_N 256
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef STAGES
#define STAGES 4
#endif

constexpr int BLOCK_M = 64 * CONSUMERS, BLOCK_K = 128 / sizeof(Element);  // the widest swizzle
constexpr int THREADS = 128 * (1 + CONSUMERS);
constexpr int BOX_BYTES = 64 * 128;  // 64 lines of 128 bytes: 64 rows if K-major, else 64 k's of 64 columns
constexpr int A_BYTES = BLOCK_M / 64 * BOX_BYTES, STAGE_BYTES = A_BYTES + BLOCK_N / 64 * BOX_BYTES;
constexpr int STRIP_N = 128 / sizeof(Output);  // whole cache lines
constexpr int STRIP_BYTES = Strip<STRIP_N>::Bytes * 4 * CONSUMERS;
static_assert(CONSUMERS <= 2, "three times 128 accumulators and what else it takes do not fit into 65536 registers");

// The ring: a stage is full when its bytes have landed, empty when all consumer warps have multiplied it.
struct Ring {
    unsigned char* stages;
    Barrier *full, *empty;

    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) barrier_init(full[i], 1), barrier_init(empty[i], 4 * CONSUMERS);
            barrier_init_fence();
        }
        __syncthreads();
    }

    // Called by whole warps.
    __device__ __forceinline__ void release(int stage) const { barrier_arrive_if(threadIdx.x % 32 == 0, empty[stage]); }
};

using Place = RingPlace<STAGES>;

#if BATCHED  // apart: bits that say along which axes of the batch there are several matrices of a (1, 2) and of b (4, 8)
#define BATCH_SIZES , int products, int inner, int apart
#define SIZES Sizes{M, N, K, k_split, products, inner, apart}
#else
#define BATCH_SIZES
#define SIZES Sizes{M, N, K, k_split, 1, 1, 0}
#endif

struct Sizes {
    int M, N, K, k_split, products, inner, apart;
};

// One tile of a product, or one split of it. slice: which [M, N] of the output.
struct Work {
    int m, n, slice, k_begin, k_end, outer, inner;

    __device__ __forceinline__ Work(int index, const Sizes& sizes) {
        const int tiles_m = cdiv(sizes.M, BLOCK_M), tiles_n = cdiv(sizes.N, BLOCK_N);
        const Tile tile = grouped_tile(index % (tiles_m * tiles_n), tiles_m, tiles_n);
        m = tile.m * BLOCK_M;
        n = tile.n * BLOCK_N;
        slice = index / (tiles_m * tiles_n);
        const int product = BATCHED ? slice % sizes.products : 0;
        outer = product / sizes.inner;
        inner = product % sizes.inner;
        k_begin = (BATCHED ? slice / sizes.products : slice) * sizes.k_split;
        k_end = min(sizes.K, k_begin + sizes.k_split);
    }
};

// A map and which of its matrices.
struct Operand {
    const TensorMap& map;
    int outer, inner;

    __device__ __forceinline__ Operand(const TensorMap& map, const Work& work, int apart)
        : map(map), outer(apart & 1 ? work.outer : 0), inner(apart & 2 ? work.inner : 0) {}

    __device__ __forceinline__ void load(unsigned char* to, Barrier& full, int x, int y) const {
        if constexpr (BATCHED) {
            tma_load(to, map, full, x, y, inner, outer);
        } else {
            tma_load(to, map, full, x, y);
        }
    }
};

// An operand's tile of Boxes times 64 lines. K-major the boxes lie below one another, and one copy with a box of all
// their rows brings them; otherwise side by side.
template <bool KMajor, int Boxes>
__device__ __forceinline__ void load_tile(unsigned char* tile, const Operand& x, Barrier& full, int mn, int k) {
#pragma unroll
    for (int i = 0; i < (KMajor ? 1 : Boxes); i++)
        x.load(tile + i * BOX_BYTES, full, KMajor ? k : mn + 64 * i, KMajor ? mn : k);
}

__device__ __forceinline__ void produce(const Ring& ring, Place& place, const Work& work, const Operand& a,
                                        const Operand& b) {
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        unsigned char* stage = ring.stages + place.stage * STAGE_BYTES;
        Barrier& full = ring.full[place.stage];
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        barrier_expect(full, STAGE_BYTES);
        load_tile<A_K_MAJOR, CONSUMERS>(stage, a, full, work.m, k);
        load_tile<B_K_MAJOR, BLOCK_N / 64>(stage + A_BYTES, b, full, work.n, k);
        place.advance();
    }
}

// A step is 32 bytes of K: part of every line if K-major, otherwise 16 lines.
template <bool KMajor>
__device__ __forceinline__ Descriptor describe(const unsigned char* tile, int step) {
    return matrix_descriptor(tile + step * (KMajor ? 32 : 16 * 128), BOX_BYTES);
}

// The products of one stage stay under way while the next one is awaited; a stage is given back one step late.
__device__ __forceinline__ void consume(float (&sum)[BLOCK_N / 8][4], const Ring& ring, Place& place,
                                        const Work& work) {
    int previous = -1;
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        const unsigned char* b = ring.stages + place.stage * STAGE_BYTES + A_BYTES;
        const unsigned char* a = b - A_BYTES + (threadIdx.x / 128 - 1) * BOX_BYTES;
        barrier_wait(ring.full[place.stage], place.phase);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 128 / 32; step++)
            wgmma<A_K_MAJOR, B_K_MAJOR>(sum, describe<A_K_MAJOR>(a, step), describe<B_K_MAJOR>(b, step),
                                        k > work.k_begin || step > 0, Element());
        wgmma_commit();
        wgmma_wait<1>();
        if (previous >= 0) ring.release(previous);
        previous = place.stage;
        place.advance();
    }
    wgmma_wait<0>(sum);
    ring.release(previous);
}

// Block i computes the works i, i + gridDim.x, ...; there are (tiles) x (products) x (splits of K), each split with its own
// [M, N] slices of c. k_split is a multiple of BLOCK_K, or K. On an H200, sharing the tiles of b between the two blocks
// of a cluster by multicast brought nothing (774 TFLOP/s instead of 781 at bf16 4096^3): a tile has few readers at a
// time, and L2 serves them.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_wgmma(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                 Output* __restrict__ c EPILOGUE_PARAMETERS(Output), int M, int N, int K, int k_split, int works
                 BATCH_SIZES) {
    extern __shared__ __align__(1024) unsigned char stages[];  // then a strip per consumer warp, then the barriers
    Barrier* barriers = reinterpret_cast<Barrier*>(stages + STAGES * STAGE_BYTES + STRIP_BYTES);
    const Ring ring = {stages, barriers, barriers + STAGES};
    ring.init();
    Place place;
    if (threadIdx.x < 128) {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int i = blockIdx.x; i < works; i += gridDim.x) {
                const Work work(i, SIZES);
                produce(ring, place, work, Operand(a_map, work, SIZES.apart), Operand(b_map, work, SIZES.apart >> 2));
            }
    } else {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int warp = threadIdx.x / 32 - 4;
        Output* strip = reinterpret_cast<Output*>(stages + STAGES * STAGE_BYTES + warp * Strip<STRIP_N>::Bytes);
        float sum[BLOCK_N / 8][4] = {};
        for (int i = blockIdx.x; i < works; i += gridDim.x) {
            const Work work(i, SIZES);
            consume(sum, ring, place, work);
            Output* slice = c + (i64)work.slice * M * N;
#pragma unroll
            for (int n = 0; n < BLOCK_N; n += STRIP_N)
                Strip<STRIP_N>::store_out(strip, sum + n / 8, slice, EPILOGUE(Output), work.m + warp * 16, work.n + n,
                                          M, N);
        }
    }
}
