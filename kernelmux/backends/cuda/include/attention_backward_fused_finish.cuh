// grad_q = scale * sums, from the order in which the warpgroups of attention_backward_fused.cu keep their parts, rounded
// to the storage dtype. Blocks that have no keys left to take do it, tile by tile as the last part of one is added.
#pragma once
#include "attention_backward_fused.cuh"
#include "attention_backward_wgmma.cuh"

#ifndef FINISHED
#define FINISHED 8  // tiles of a block
#endif
#ifndef CHAINS
#define CHAINS 1  // in which blocks add one after another, each to sums of its own
#endif
#define FINISH_QUERIES (FINISHED * TILE)
#define FINISH_AHEAD 2             // pieces of 8 queries and 64 columns that a warp reads at a time

// What blocks that finish have instead of tiles: a piece for each warp.
struct FinishShared {
    float rows[THREADS / 32][8][64 + 4];  // 8 rows apart, lanes meet in no bank
};

// How many blocks of keys add to a tile in a chain: those whose number leaves this rest.
__device__ __forceinline__ int parts_of(int tile, int chain, const Shape& shape) {
    const Interval keys = keys_of_tile(tile * TILE, TILE, shape);
    if (keys.first >= keys.end) return 0;
    const int from_first = (chain + CHAINS - keys.first / OWN % CHAINS) % CHAINS;
    return ((keys.end - 1) / OWN - keys.first / OWN - from_first + CHAINS) / CHAINS;
}

// FINISH_QUERIES queries of a slice; `unit` numbers them, slice by slice.
__device__ __forceinline__ void finish(FinishShared& shared, const float* sums, const int* done, Element* out, int unit,
                                       float scale, const Shape& shape, i64 slices) {
    const int units = cdiv(shape.M, FINISH_QUERIES), tiles = cdiv(shape.M, TILE), eights = cdiv(shape.M, 8);
    const i64 slice = unit / units;
    const int first = unit % units * FINISH_QUERIES, end = min(first + FINISH_QUERIES, shape.M);
    const int first_tile = first / TILE, counters = CHAINS * CONSUMERS * (cdiv(end, TILE) - first_tile);
    if (threadIdx.x < counters) {
        const int tile = first_tile + threadIdx.x / CONSUMERS / CHAINS, chain = threadIdx.x / CONSUMERS % CHAINS;
        await(done + (slice * tiles + first_tile) * CHAINS * CONSUMERS + threadIdx.x, parts_of(tile, chain, shape));
    }
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pieces = cdiv(end - first, 8) * PANELS;
    float(&rows)[8][64 + 4] = shared.rows[warp];
    for (int begin = warp; begin < pieces; begin += FINISH_AHEAD * (THREADS / 32)) {
        float4 x[FINISH_AHEAD][4];
#pragma unroll
        for (int a = 0; a < FINISH_AHEAD; a++) {
            const int piece = begin + a * (THREADS / 32), eight = first / 8 + piece / PANELS;
#pragma unroll
            for (int chain = 0; chain < CHAINS; chain++) {
                const bool added = piece < pieces && parts_of(eight * 8 / TILE, chain, shape) > 0;
                const float4* from = reinterpret_cast<const float4*>(sums) +
                                     (((chain * slices + slice) * PANELS + piece % PANELS) * eights + eight) * 128 + lane;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float4 y = added ? __ldcg(from + 32 * j) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (chain == 0) x[a][j] = y;
                    else x[a][j].x += y.x, x[a][j].y += y.y, x[a][j].z += y.z, x[a][j].w += y.w;
                }
            }
        }
#pragma unroll
        for (int a = 0; a < FINISH_AHEAD; a++) {
            const int piece = begin + a * (THREADS / 32), query = first + piece / PANELS * 8;
            if (piece >= pieces) break;
            const int row = lane % 4 * 2, panel = piece % PANELS;
            __syncwarp();
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int column = 16 * j + lane / 4;
                rows[row][column] = x[a][j].x * scale, rows[row + 1][column] = x[a][j].y * scale;
                rows[row][column + 8] = x[a][j].z * scale, rows[row + 1][column + 8] = x[a][j].w * scale;
            }
            __syncwarp();
#pragma unroll
            for (int to = lane / 8; to < 8; to += 4) {
                const int from = lane % 8 * 8;
                float y[8];
#pragma unroll
                for (int i = 0; i < 8; i++) y[i] = rows[to][from + i];
                if (query + to < end && 64 * panel + from < HEAD_DIM)
                    store(out + (slice * shape.M + query + to) * HEAD_DIM + 64 * panel + from, from_floats<Element>(y));
            }
        }
    }
}
