// Sequences whose lengths only the GPU knows, shared out evenly: all tiles of all keys stand in one line, ordered by
// sequence and key head, and every block takes as many in a row, wherever sequences begin and end.
#pragma once
#include "attention.cuh"

#ifndef LEAST
#define LEAST 2  // tiles of a share
#endif

// Tiles of keys of each key head of a sequence, and the number of its first one in the line.
struct Sequence {
    int batch, tiles;
    i64 first;
};

struct Sequences {
    const int* lengths;
    int count, kv_heads, most;

    // A negative number, or more keys than the pages hold: the table would be read behind its end.
    __device__ __forceinline__ bool impossible(int batch) const { return lengths[batch] < 0 || lengths[batch] > most; }

    __device__ __forceinline__ int keys(int batch) const { return impossible(batch) ? 0 : lengths[batch]; }

    // Without keys there is a tile too: someone must write the zeros.
    __device__ __forceinline__ int tiles(int batch) const { return (max(1, keys(batch)) - 1) / BLOCK_N + 1; }

    // Tiles of a share, where the line is divided into `shares`.
    __device__ __forceinline__ i64 share(int shares) const {
        i64 all = 0;
        for (int batch = threadIdx.x % 32; batch < count; batch += 32) all += tiles(batch);
        all = warp_reduce(all, Sum()) * kv_heads;
        return max((all + shares - 1) / shares, (i64)LEAST);
    }

    // The sequence that tile number `index` of the line belongs to; one past the last if there is no such tile.
    __device__ __forceinline__ Sequence find(i64 index) const {
        i64 first = 0;
        for (int start = 0; start < count; start += 32) {
            const int lane = threadIdx.x % 32, own = start + lane < count ? tiles(start + lane) : 0;
            i64 end = (i64)own * kv_heads;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const i64 before = __shfl_up_sync(0xffffffffu, end, step);
                if (lane >= step) end += before;
            }
            const unsigned behind = __ballot_sync(0xffffffffu, first + end > index);
            if (behind) {
                const int found = __ffs(behind) - 1, own_tiles = __shfl_sync(0xffffffffu, own, found);
                return {start + found, own_tiles, first + __shfl_sync(0xffffffffu, end - (i64)own * kv_heads, found)};
            }
            first += __shfl_sync(0xffffffffu, end, 31);
        }
        return {count, 0, first};
    }

    __device__ __forceinline__ Sequence after(const Sequence& last) const {
        const int batch = last.batch + 1;
        return {batch, batch < count ? tiles(batch) : 0, last.first + (i64)last.tiles * kv_heads};
    }
};

// A piece of a share: `count` tiles of one key head, from its tile `from` on.
struct Piece {
    int kv_head, from, count;
};

__device__ __forceinline__ Piece piece_at(i64 at, i64 end, const Sequence& sequence) {
    const i64 within = at - sequence.first;
    const int kv_head = within / sequence.tiles, from = within % sequence.tiles;
    return {kv_head, from, (int)min((i64)(sequence.tiles - from), end - at)};
}
