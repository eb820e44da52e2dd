// What the kernels of attention's gradient share: the shape of a call, which query sees which key, the weights.
#pragma once
#include "attention_elements.cuh"

#ifndef WINDOWED
#define WINDOWED 0
#endif

// `group` heads of q share one of k and v; under a causal mask query i sees keys up to i + shift; `pitch` is M rounded
// up to whole tiles, the length of a row of offsets.
struct Shape {
    int heads, group, M, N, pitch, shift, window;
};

// Distances between batches, heads and rows.
struct Strides {
    i64 batch, head, row;
};

struct Interval {
    int first, end;
    __device__ __forceinline__ bool has(int i) const { return i >= first && i < end; }
};

// The keys that query i sees; a query past M sees none.
__device__ __forceinline__ Interval keys_of(int i, const Shape& s) {
    const int at = i + s.shift;
    if (i >= s.M) return {0, 0};
    return {WINDOWED ? max(0, at - s.window + 1) : 0, CAUSAL ? min(s.N, at + 1) : s.N};
}

// The queries that see key j; a key past N is seen by none.
__device__ __forceinline__ Interval queries_of(int j, const Shape& s) {
    const int i = j - s.shift;  // the first query that sees the key under a causal mask
    if (j >= s.N) return {0, 0};
    return {CAUSAL ? max(0, i) : 0, WINDOWED ? min(s.M, i + s.window) : s.M};
}

// What a tile of queries sees together, and what sees a tile of keys; the first of a tile is always one of the call.
__device__ __forceinline__ Interval keys_of_tile(int first, int count, const Shape& s) {
    return {keys_of(first, s).first, keys_of(min(first + count, s.M) - 1, s).end};
}
__device__ __forceinline__ Interval queries_of_tile(int first, int count, const Shape& s) {
    return {queries_of(first, s).first, queries_of(min(first + count, s.N) - 1, s).end};
}

// Whether each of these queries sees each of these keys, so that nothing needs a mask.
__device__ __forceinline__ bool all_seen(int query, int queries, int key, int keys, const Shape& s) {
    const int at = query + s.shift;
    return query + queries <= s.M && key + keys <= s.N && (!CAUSAL || key + keys - 1 <= at) &&
           (!WINDOWED || key > at + queries - 1 - s.window);
}
