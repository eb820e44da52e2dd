// Tiles of queries, keys and values in shared memory behind cp.async, and a warp's products of them on mma.sync.
#pragma once
#include "attention.cuh"
#include "tensor_cores.cuh"

#ifndef STAGES
#define STAGES 2
#endif
#ifndef VECTOR
#define VECTOR 8  // elements per global load: 8 needs rows aligned to 16 bytes, 1 takes any
#endif

#define CHUNKS (HEAD_DIM / 8)               // 16-byte chunks of a row
#define STEPS ((HEAD_DIM + 15) / 16)        // products of 16 columns; half of the last one may be zeros
#define PITCH ((HEAD_DIM + 63) / 64 * 128)  // bytes of a row in shared memory
#define OUT_TILES (2 * STEPS)

// Chunks of eight successive rows land in eight different bank groups, as ldmatrix reads them.
__device__ __forceinline__ unsigned chunk_address(unsigned tile, int row, int chunk) {
    return tile + row * PITCH + ((chunk ^ (row & 7)) << 4);
}

__device__ __forceinline__ void load_chunk(unsigned target, const Element* source, bool inside) {
#pragma unroll
    for (int i = 0; i < 8; i += VECTOR) copy_async<2 * VECTOR>(target + 2 * i, source + i, inside);
}

// Rows [first, first + ROWS) of x to shared memory; rows at or past `limit` become zeros, so that 0 * V stays 0.
// Each thread keeps its chunk, of which there may be fewer than threads for it.
template <int ROWS>
__device__ __forceinline__ void load_tile(unsigned tile, const Element* x, i64 stride, int first, int limit) {
    constexpr int SLOTS = CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : 32, STEP = THREADS / SLOTS;
    static_assert(STEP % 4 == 0 && ROWS % STEP == 0, "the swizzle of a row differs from the first one's by row & 4");
    const int row = threadIdx.x / SLOTS, chunk = threadIdx.x % SLOTS;
    if (2 * STEPS < SLOTS && chunk >= 2 * STEPS) return;
    const unsigned target = chunk_address(tile, row, chunk);
    const Element* source = x + (first + row) * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP, source += STEP * stride)
        load_chunk((target ^ (i & 4) << 4) + i * PITCH, source, first + row + i < limit && chunk < CHUNKS);
}

// Where a lane reads from: its row and chunk of the first 16 x 16 piece of a tile. The piece `column` pieces to the
// right lies at `^ 32 * column` in lines of 128 bytes, as the swizzle only exchanges bits. The compiler would keep all
// these places in registers, which the accumulators need; what it cannot see through, it computes again.
__device__ __forceinline__ unsigned piece(unsigned lane_place, int column) {
    if constexpr (HEAD_DIM > 64) asm volatile("" : "+r"(lane_place));
    if constexpr (PITCH == 256) return lane_place ^ 32 * column;
    else return (lane_place ^ 32 * (column % 4)) + 128 * (column / 4);
}

// s = Q K^T for a warp's rows. [16 * Atoms, HEAD_DIM] x [8 * KeyTiles, HEAD_DIM]^T
template <int Atoms, int KeyTiles>
__device__ __forceinline__ void compute_scores(float (&s)[Atoms][KeyTiles][4], unsigned q_place, unsigned k_tile) {
    const int lane = threadIdx.x & 31;
    const unsigned k_place = chunk_address(k_tile, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
#pragma unroll
    for (int kk = 0; kk < STEPS; kk++) {
        const unsigned q_piece = piece(q_place, kk), k_piece = piece(k_place, kk);
        unsigned q[Atoms][4];
#pragma unroll
        for (int a = 0; a < Atoms; a++) load_matrices<false>(q[a], q_piece + 16 * a * PITCH);
#pragma unroll
        for (int j = 0; j < KeyTiles / 2; j++) {
            unsigned k[4];  // two tiles of 8 keys: {d 0-7, d 8-15} each
            load_matrices<false>(k, k_piece + 16 * j * PITCH);
#pragma unroll
            for (int a = 0; a < Atoms; a++) {
                mma(s[a][2 * j], q[a], k[0], k[1], Element());
                mma(s[a][2 * j + 1], q[a], k[2], k[3], Element());
            }
        }
    }
}

// o += P V for a warp's rows, P rounded to Element. [16 * Atoms, 8 * KeyTiles] x [8 * KeyTiles, HEAD_DIM]
template <int Atoms, int KeyTiles>
__device__ __forceinline__ void add_values(float (&o)[Atoms][OUT_TILES][4], const float (&s)[Atoms][KeyTiles][4],
                                           unsigned v_tile) {
    const int lane = threadIdx.x & 31;
    const unsigned v_place = chunk_address(v_tile, lane & 15, lane >> 4);
    unsigned p[Atoms][KeyTiles / 2][4];
#pragma unroll
    for (int a = 0; a < Atoms; a++) pack_rows(p[a], s[a]);
#pragma unroll
    for (int j = 0; j < KeyTiles / 2; j++) {
#pragma unroll
        for (int d = 0; d < STEPS; d++) {
            unsigned v[4];  // two tiles of 8 columns: {keys 0-7, keys 8-15} each
            load_matrices<true>(v, piece(v_place, d) + 16 * j * PITCH);
#pragma unroll
            for (int a = 0; a < Atoms; a++) {
                mma(o[a][2 * d], p[a][j], v[0], v[1], Element());
                mma(o[a][2 * d + 1], p[a][j], v[2], v[3], Element());
            }
        }
    }
}
