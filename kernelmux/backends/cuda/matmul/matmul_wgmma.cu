// matmul on Hopper's asynchronous tensor cores: one thread feeds them through TMA.
//
// It keeps a ring of STAGES tiles filled; each consumer warpgroup multiplies HEIGHT x 64 rows by BLOCK_N columns of every
// stage, straight from swizzled shared memory. Blocks are persistent: the next tile of c travels while the last one is
// stored. TMA reads zeros outside an operand, so ragged extents need no code here, and rounds fp32 to the nearest tf32.
// Blocks of a cluster fetch what several of them need once, by multicast.
#include "dependent_launch.cuh"  // FOLLOWS: the launch before copies operands, and its blocks have begun
#include "matmul_wgmma.cuh"

#if BATCHED  // apart: bits that say along which axes of the batch there are several matrices of a (1, 2) and of b (4, 8)
#define MAPS_PARAMETERS , int products, int inner, int apart
#define MAPS products, inner, apart
#else
#define MAPS_PARAMETERS
#define MAPS 1, 1, 0
#endif

#ifndef B_ONCE  // there is one row of tiles, so that b is read once
#define B_ONCE 0
#endif

#ifndef LEAVES_REST  // the launch that follows computes the tiles behind these, and may begin when blocks of this one end
#define LEAVES_REST 0
#endif

#if OWN_LAST
#define LAST_MAP const __grid_constant__ TensorMap last_map,
#else
#define LAST_MAP
#define last_map b_map
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

    // Into the shared memory of those blocks of the cluster whose bits are set, at the same place; the barrier of each
    // counts the bytes.
    __device__ __forceinline__ void load_for(unsigned mask, unsigned char* to, Barrier& full, int x, int y) const {
        if constexpr (BATCHED)
            asm volatile(
                "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
                "l"(&map), "r"(shared_address(&full)), "r"(x), "r"(y), "r"(inner), "r"(outer), "h"((short)mask)
                : "memory");
        else
            tma_load_for(mask, to, map, full, x, y);
    }
};

// The part of a's tile that this block fetches, of all or for the blocks beside it. K-major the boxes lie below one
// another, and one copy with a box of all their rows brings them; otherwise side by side.
__device__ __forceinline__ void load_a(unsigned char* tile, const Operand& a, Barrier& full, int m, int k, Seat seat) {
    constexpr int Boxes = BLOCK_M / 64 / ACROSS;
#pragma unroll
    for (int i = 0; i < (A_K_MAJOR ? 1 : Boxes); i++) {
        const int box = seat.x * Boxes + i, at = m + 64 * box;
        unsigned char* to = tile + box * BOX_BYTES;
        if constexpr (ACROSS == 1) a.load(to, full, A_K_MAJOR ? k : at, A_K_MAJOR ? at : k);
        else a.load_for(((1 << ACROSS) - 1) << seat.y * ACROSS, to, full, A_K_MAJOR ? k : at, A_K_MAJOR ? at : k);
    }
}

// The same of b's tile, for the blocks above and below: K-major a part of its columns, otherwise of its k's. last: the map of
// its last box, where that is narrower.
__device__ __forceinline__ void load_b(unsigned char* tile, const Operand& b, const Operand& last, Barrier& full, int n,
                                       int k, Seat seat) {
    constexpr int Lines = (B_K_MAJOR ? BLOCK_N : BLOCK_K) / DOWN;
    constexpr int Copies = B_K_MAJOR ? cdiv(Lines, 256) : cdiv(BLOCK_N, 64), Each = Lines / Copies;  // a box has 256 lines at most
    const int first = seat.y * Lines;
#pragma unroll
    for (int i = 0; i < Copies; i++) {
        const int x = B_K_MAJOR ? k : n + 64 * i, y = (B_K_MAJOR ? n + i * Each : k) + first;
        const Operand& from = OWN_LAST && i == BLOCK_N / 64 ? last : b;
        unsigned char* to = tile + (B_K_MAJOR ? i * Each * 128 : i * BOX_BYTES) + first * 128;
        if constexpr (B_ONCE) tma_load_once(to, from.map, full, x, y);
        else if constexpr (DOWN == 1) from.load(to, full, x, y);
        else from.load_for((1 | 1 << ACROSS) << seat.x, to, full, x, y);
    }
}

__device__ __forceinline__ void produce(const Ring& ring, Place& place, const Work& work, int row, const Operand& a,
                                        const Operand& b, const Operand& last) {
    static_assert(DOWN <= 2, "load_b names two blocks");
    static_assert(!B_ONCE || (DOWN == 1 && !BATCHED), "one block reads a part of b, of one matrix");
    const Seat seat;
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        Barrier& full = ring.full[place.stage];
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        barrier_expect(full, LOADED_BYTES);
        load_a(ring.a(place.stage), a, full, row, k, seat);
        load_b(ring.b(place.stage), b, last, full, work.n, k, seat);
        place.advance();
    }
    if constexpr (STRIPS_IN_RING) {
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        barrier_arrive_if(true, ring.full[place.stage]);
        place.advance();
    }
}

// Of rows in turn the matrices of a are its even rows and its odd ones, as many of each. Where there is one even row more,
// these are also a third matrix, without the first of them: so all but the first tile reads to the last row, and none
// beyond it.
//
// Block i computes the works i, i + gridDim.x, ...; there are (tiles) x (products) x (splits of K), each split with its own
// [M, N] slices of c.
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
    matmul_wgmma(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, LAST_MAP
                 Output* __restrict__ c EPILOGUE_PARAMETERS(Output), int M, int N, int K, int k_split, int works
                 MAPS_PARAMETERS) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    // What follows in its turn may read the copies: so it may not begin before they are there.
    if constexpr (FOLLOWS) wait_for_previous();
    if constexpr (LEAVES_REST) let_next_start();
    const int batch[] = {MAPS};
    const Sizes sizes = {M, N, K, k_split, batch[0]};
    if (threadIdx.x < 128) {
        fetches();
        Place place;
        if (threadIdx.x == 0)
            for (int i = blockIdx.x; i < works; i += gridDim.x) {
                const Work work(i, sizes);
                const bool later = ODD_ROWS && work.product == 0 && work.m > 0;
                const Operand a(a_map, later ? 2 : work.product, batch[1], batch[2]);
                const Operand b(b_map, work.product, batch[1], batch[2] >> 2);
                const Operand last(last_map, work.product, batch[1], batch[2] >> 2);
                produce(ring, place, work, work.m - later, a, b, last);
            }
    } else {
        multiplies();
        consume(ring, c, EPILOGUE(Output), sizes, works);
    }
    cluster_sync();
}
