// What the two warpgroup kernels of attention's gradient share. A block keeps OWN rows of two tensors in shared memory
// (keys and values, or queries and gradients) and walks over tiles of TILE rows of the other two, which one thread
// feeds into a ring of STAGES through TMA. CONSUMERS warpgroups have 64 of the owned rows each and exchange nothing.
#pragma once
#include "attention_backward.cuh"
#include "attention_warpgroup.cuh"

#ifndef STAGES
#define STAGES 2
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef TILE
#define TILE 64
#endif
#ifndef TURNS
#define TURNS 1
#endif

#define OWN (64 * CONSUMERS)
#define THREADS (128 * (CONSUMERS + 1))
#define PRODUCER_REGISTERS (CONSUMERS == 2 ? 24 : 32)  // of 65,536: what the consumers leave
#define CONSUMER_REGISTERS (CONSUMERS == 2 ? 240 : 160)
#define PANELS ((HEAD_DIM + 63) / 64)  // a TMA box of the 128-byte swizzle is 64 elements wide; zeros behind HEAD_DIM
#define COLUMN_TILES (HEAD_DIM <= 64 ? 8 : (HEAD_DIM + 15) / 16 * 2)  // of a sum

template <int Rows>
using Panels = Element[PANELS][Rows][64];

// As descriptor_behind. In a cluster a block's rank is in its addresses of shared memory, where a descriptor has
// `leading`.
__device__ __forceinline__ Descriptor product_descriptor(const void* tile, int leading, int offset) {
#if SHARES > 1
    const unsigned start = ((shared_address(tile) & 0x3ffff) >> 4) + (unsigned)(leading >> 4 << 16);
    return (Descriptor)(1024 >> 4 | 1 << 30) << 32 | (start + offset / 16);
#else
    return descriptor_behind(tile, leading, offset);
#endif
}

// Bytes to contiguous shared memory; both ends and the size are multiples of 16, the barrier counts them.
__device__ __forceinline__ void bulk_load(void* to, const void* from, Barrier& barrier, int bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(&barrier))
                 : "memory");
}

// Lets the warpgroups issue their products one after the other, so that the exponentials of one meet the products of
// another; `count` is how many turns this group has had.
struct Turns {
    Barrier turn[CONSUMERS];

    __device__ __forceinline__ void init() {
        for (int group = 0; group < CONSUMERS; group++) barrier_init(turn[group], 4);
    }
    __device__ __forceinline__ void begin(int group, bool speaks) {
        if (TURNS) barrier_arrive_if(speaks && group == CONSUMERS - 1, turn[0]);
    }
    __device__ __forceinline__ void take(int group, unsigned count) {
        if (TURNS) barrier_wait(turn[group], count & 1);
    }
    __device__ __forceinline__ void pass(int group, bool speaks) {
        if (TURNS) barrier_arrive_if(speaks, turn[(group + 1) % CONSUMERS]);
    }
};

template <int Rows>
__device__ __forceinline__ void load_panels(Panels<Rows>& tile, const TensorMap& map, Barrier& barrier, int row,
                                            int head, int batch) {
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) tma_load(tile[panel], map, barrier, 64 * panel, row, head, batch);
}

// Work number `index`: a tile of a slice. Slices come in sections that L2 holds together; within one, causal work goes
// from the longest pieces to the shortest, so that these fill the gaps at the end.
struct Place {
    int slice, tile;
};
__device__ __forceinline__ Place locate(int index, int slices, int section, int tiles) {
    const int per_section = section * tiles, first = index / per_section * section, within = index % per_section;
    const int together = min(section, slices - first);
    return {first + within % together, within / together};
}

// Sums that a product is to begin anew: the compiler need not keep what they were.
template <int Count>
__device__ __forceinline__ void forget(float (&d)[Count][4]) {
#pragma unroll
    for (int i = 0; i < 4 * Count; i++) asm volatile("" : "=f"(d[i / 4][i % 4]));
}

// d = a b^T of 64 owned rows and a tile, in flight on return. [64, HEAD_DIM] x [TILE, HEAD_DIM]^T
template <int Rows>
__device__ __forceinline__ void issue_rows(float (&d)[TILE / 8][4], const Panels<OWN>& own, int group,
                                           const Panels<Rows>& tile) {
#pragma unroll
    for (int c = 0; c < HEAD_DIM; c += 16)
        wgmma<true, true>(d, product_descriptor(own[0][64 * group], 0, c / 64 * sizeof(own[0]) + c % 64 * 2),
                          product_descriptor(tile, 0, c / 64 * sizeof(tile[0]) + c % 64 * 2), c != 0, Element());
    wgmma_commit();
}

// sum += a b, the weights in registers, in flight on return. [64, TILE] x [TILE, HEAD_DIM]
template <int Rows>
__device__ __forceinline__ void issue_columns(float (&sum)[COLUMN_TILES][4], unsigned (&weights)[TILE / 16][4],
                                              const Panels<Rows>& tile) {
    pin(sum), pin(weights);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < TILE; n += 16)
        wgmma(sum, weights[n / 16], product_descriptor(tile, Rows * 128, n * 128), Element());
    wgmma_commit();
}

__device__ __forceinline__ void clear(float (&sum)[COLUMN_TILES][4]) {
#pragma unroll
    for (int i = 0; i < 4 * COLUMN_TILES; i++) sum[i / 4][i % 4] = 0.0f;
}

// Weights as the left operand of the next product, rounded to Element: an m16k16 fragment per 16 columns.
__device__ __forceinline__ void pack(unsigned (&packed)[TILE / 16][4], const float (&s)[TILE / 8][4]) {
#pragma unroll
    for (int i = 0; i < TILE / 4; i++)
        packed[i / 4][i % 4] = pair_from_floats<Element>(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
}

// Clears what row `r` of a lane's two must not see; `first` is the lane's first column of the tile, its others follow 1
// and multiples of 8 later.
__device__ __forceinline__ void mask(float (&s)[TILE / 8][4], int r, Interval seen, int first) {
#pragma unroll
    for (int i = 0; i < TILE / 8; i++) {
        if (!seen.has(first + 8 * i)) s[i][2 * r] = 0.0f;
        if (!seen.has(first + 8 * i + 1)) s[i][2 * r + 1] = 0.0f;
    }
}

// out[row..row + 16) = sum * factor; rows at or past `limit` are left out.
__device__ __forceinline__ void store_rows(Element* out, const float (&sum)[COLUMN_TILES][4], float factor, int row,
                                           int limit) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int target = row + threadIdx.x % 32 / 4 + 8 * r;
        store_row(out + (i64)target * HEAD_DIM, target < limit, sum, r, factor);
    }
}
