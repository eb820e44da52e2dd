// A row in registers: GROUP threads share a row of n elements, and each holds VECTORS vectors of WIDTH neighbours.
// Vectors of one thread lie GROUP apart, so a warp's access is contiguous. A block holds ROWS rows side by side.
#pragma once

#include "peel.cuh"

#ifndef ELEMENT
#define ELEMENT float
#endif
#ifndef WIDTH
#define WIDTH 4
#endif
#ifndef GROUP
#define GROUP 256
#endif
#ifndef VECTORS
#define VECTORS 4
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef MIN_BLOCKS  // blocks per multiprocessor that the registers must allow
#define MIN_BLOCKS 1
#endif
#ifndef INSIDE  // vectors of every thread that lie inside the row: nothing needs to be asked for them
#define INSIDE 0
#endif
#ifndef CLUSTER  // blocks that share a row: sm_90
#define CLUSTER 1
#endif
#ifndef PEELED  // rows start anywhere: their vectors begin at the first aligned address of each
#define PEELED 0
#endif
#ifndef UNROLL  // vectors in flight where a row does not fit in registers
#define UNROLL 4
#endif
static_assert(GROUP <= 32 || ROWS == 1, "a row of several warps has the block to itself");

using T = ELEMENT;
using Elements = Vec<T, WIDTH>;

__device__ __forceinline__ int column(int vector) { return (vector * GROUP + threadIdx.x) * WIDTH; }

// The column of a vector, or of the last one of the n columns where it would lie beyond them.
__device__ __forceinline__ int within(int vector, int n) {
    return vector < INSIDE ? column(vector) : min(column(vector), n - WIDTH);
}

// The first bits of a vector, up to 32 of them.
__device__ __forceinline__ int first_word(const Elements& x) {
    int word = 0;
    memcpy(&word, &x, sizeof(x) < 4 ? sizeof(x) : 4);
    return word;
}

// To be called between two passes over `held`.
__device__ __forceinline__ void stay_packed(Elements (&held)[VECTORS]) {
    if (sizeof(T) < 4)
#pragma unroll
        for (Elements& x : held) stay_packed(x);
}

// f(column, vector index) for every vector of this thread that lies inside the row.
template <typename F>
__device__ __forceinline__ void for_each_vector(int n, F f) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (v < INSIDE || column(v) < n) f(column(v), v);
}

__device__ __forceinline__ Peel peeled(const T* row, int n) { return PEELED ? Peel::evenly<WIDTH>(row, n) : Peel{0, n, 0}; }

// The columns beside the vectors of a peeled row that this thread has.
template <int In>
using BesideRow = Beside<T, In, PEELED ? WIDTH : 1, GROUP>;

// The weights of the vector that begins i columns behind the `head` of a row.
__device__ __forceinline__ Elements weights_of(const T* w, int i, int head) {
    if constexpr (PEELED) return load_across<WIDTH>(w + i, head);
    else return load<WIDTH>(w + i);
}

__device__ __forceinline__ int block_in_cluster() {
    if (CLUSTER == 1) return 0;
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
