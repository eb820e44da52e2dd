// Sequences whose lengths only the GPU knows, shared out evenly: all tiles of all keys stand in one line, ordered by
// sequence and key head, and every block takes as many in a row, wherever sequences begin and end.
#pragma once
#include "attention.cuh"

#ifndef INDEX
#define INDEX int  // numbers the tiles of the line
#endif
#define LEAST 2  // tiles of a share

using Index = INDEX;

struct Sequences {
    const int* lengths;
    int count, kv_heads, most;

    // A negative number, or more keys than the pages hold: the table would be read behind its end.
    __device__ __forceinline__ bool impossible(int batch) const { return lengths[batch] < 0 || lengths[batch] > most; }

    __device__ __forceinline__ int keys(int batch) const { return impossible(batch) ? 0 : lengths[batch]; }
};

// Tiles of the keys of a sequence. Without keys there is one too: someone must write the zeros.
__device__ __forceinline__ int tiles_of(int keys) { return (max(1, keys) - 1) / BLOCK_N + 1; }

// Tiles in the line, and of each share if there are so many shares. Where the longest sequence would be cut into pieces
// that are nearly as long as a share, shares are as long as these, so that sequences of equal length are cut alike.
struct Line {
    Index tiles, share;
};

__device__ __forceinline__ Line divide(const Sequences& sequences, int shares) {
    Index all = 0;
    int longest = 0;
    for (int start = threadIdx.x % 32; start < sequences.count; start += 128) {
#pragma unroll
        for (int batch = start; batch < start + 128; batch += 32) {  // four loads at a time
            const int tiles = batch < sequences.count ? tiles_of(sequences.keys(batch)) : 0;
            all += tiles;
            longest = max(longest, tiles);
        }
    }
    all = warp_reduce(all, [](Index a, Index b) { return a + b; }) * sequences.kv_heads;  // Sum() adds floats
    Index share = max((all + shares - 1) / shares, (Index)LEAST);
#if __CUDA_ARCH__ >= 800
    longest = __reduce_max_sync(0xffffffffu, longest);
#else
    longest = warp_reduce(longest, [](int a, int b) { return max(a, b); });
#endif
    if (longest >= share) {
        const int pieces = longest / (int)share, snapped = (longest + pieces - 1) / pieces;
        if (snapped <= share + share / 16) share = snapped;
    }
    return {all, share};
}

// A place in the line: a tile of one key head of a sequence, which has `tiles` of them for each head. piece: how many
// heads lie between here and where the walk began.
struct Walk {
    int batch, kv_head, tile, tiles, keys, piece;

    __device__ __forceinline__ void enter(const Sequences& sequences, int next) {
        batch = next;
        keys = next < sequences.count ? sequences.keys(next) : 0;
        tiles = tiles_of(keys);
    }

    __device__ __forceinline__ void step(const Sequences& sequences) {
        if (++tile < tiles) return;
        tile = 0, piece++;
        if (++kv_head < sequences.kv_heads) return;
        kv_head = 0;
        enter(sequences, batch + 1);
    }
};

// Tile number `index` of the line.
__device__ __forceinline__ Walk walk_from(Index index, const Sequences& sequences) {
    const int lane = threadIdx.x % 32;
    Walk walk = {};
    for (int start = 0; start < sequences.count; start += 32) {
        const int own = start + lane < sequences.count ? tiles_of(sequences.keys(start + lane)) : 0;
        Index end = (Index)own * sequences.kv_heads;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const Index before = __shfl_up_sync(0xffffffffu, end, step);
            if (lane >= step) end += before;
        }
        const unsigned behind = __ballot_sync(0xffffffffu, end > index);
        if (behind) {
            const int found = __ffs(behind) - 1;
            index -= __shfl_sync(0xffffffffu, end - (Index)own * sequences.kv_heads, found);
            walk.enter(sequences, start + found);
            walk.kv_head = index / walk.tiles, walk.tile = index % walk.tiles;
            return walk;
        }
        index -= __shfl_sync(0xffffffffu, end, 31);
    }
    return walk;
}
