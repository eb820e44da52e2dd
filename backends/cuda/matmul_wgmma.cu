// matmul on Hopper's asynchronous tensor cores: one thread feeds them through TMA.
//
// It keeps a ring of STAGES tiles filled; each consumer warpgroup multiplies HEIGHT x 64 rows by BLOCK_N columns of every
// stage, straight from swizzled shared memory. Blocks are persistent: the next tile of c travels while the last one is
// stored. TMA reads zeros outside an operand, so ragged extents need no code here, and rounds fp32 to the nearest tf32.
// Pairs of blocks fetch the tiles of a once for both, by multicast.
#include "matmul_wgmma.cuh"

#if BATCHED  // apart: bits that say along which axes of the batch there are several matrices of a (1, 2) and of b (4, 8)
#define MAPS_PARAMETERS , int products, int inner, int apart
#define MAPS products, inner, apart
#else
#define MAPS_PARAMETERS
#define MAPS 1, 1, 0
#endif

// A map and which of its matrices.
struct Operand {
    const TensorMap& map;
    int outer, inner;

    __device__ __forceinline__ Operand(const TensorMap& map, int product, int per_outer, int apart)
        : map(map), outer(apart & 1 ? product / per_outer : 0), inner(apart & 2 ? product % per_outer : 0) {}

    __device__ __forceinline__ void load(unsigned char* to, Barrier& full, int x, int y) const {
        if constexpr (BATCHED) {
            tma_load(to, map, full, x, y, inner, outer);
        } else {
            tma_load(to, map, full, x, y);
        }
    }

    // Into the shared memory of both blocks of a pair, at the same place; the barrier of each counts the bytes.
    __device__ __forceinline__ void load_for_pair(unsigned char* to, Barrier& full, int x, int y) const {
        const unsigned at = shared_address(to), barrier = shared_address(&full);
        const short both = 3;
        if constexpr (BATCHED)
            asm volatile(
                "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(at),
                "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(inner), "r"(outer), "h"(both)
                : "memory");
        else
            asm volatile(
                "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                "[%1, {%3, %4}], [%2], %5;" ::"r"(at),
                "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(both)
                : "memory");
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

// The half of it that block `rank` of a pair fetches.
template <bool KMajor, int Boxes>
__device__ __forceinline__ void load_half(unsigned char* tile, const Operand& x, Barrier& full, int mn, int k, int rank) {
    constexpr int Half = Boxes / 2;
#pragma unroll
    for (int i = 0; i < (KMajor ? 1 : Half); i++) {
        const int box = rank * Half + i, at = mn + 64 * box;
        x.load_for_pair(tile + box * BOX_BYTES, full, KMajor ? k : at, KMajor ? at : k);
    }
}

__device__ __forceinline__ void produce(const Ring& ring, Place& place, const Work& work, const Operand& a,
                                        const Operand& b) {
    constexpr int B_BYTES = B_K_MAJOR ? BLOCK_N * 128 : STAGE_BYTES - A_BYTES;
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        Barrier& full = ring.full[place.stage];
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        barrier_expect(full, A_BYTES + B_BYTES);
        if constexpr (PAIRED) load_half<A_K_MAJOR, BLOCK_M / 64>(ring.a(place.stage), a, full, work.m, k, blockIdx.x % 2);
        else load_tile<A_K_MAJOR, BLOCK_M / 64>(ring.a(place.stage), a, full, work.m, k);
        load_tile<B_K_MAJOR, cdiv(BLOCK_N, 64)>(ring.b(place.stage), b, full, work.n, k);
        place.advance();
    }
}

// Block i computes the works i, i + gridDim.x, ...; there are (tiles) x (products) x (splits of K), each split with its own
// [M, N] slices of c.
extern "C" __global__ void PAIR __launch_bounds__(THREADS, 1)
    matmul_wgmma(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                 Output* __restrict__ c EPILOGUE_PARAMETERS(Output), int M, int N, int K, int k_split, int works
                 MAPS_PARAMETERS) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    const int batch[] = {MAPS};
    const Sizes sizes = {M, N, K, k_split, batch[0]};
    if (threadIdx.x < 128) {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        Place place;
        if (threadIdx.x == 0)
            for (int i = blockIdx.x; i < works; i += gridDim.x) {
                const Work work(i, sizes);
                const Operand a(a_map, work.product, batch[1], batch[2]), b(b_map, work.product, batch[1], batch[2] >> 2);
                produce(ring, place, work, a, b);
            }
    } else {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume(ring, c, EPILOGUE(Output), sizes, works);
    }
    pair_sync();
}
