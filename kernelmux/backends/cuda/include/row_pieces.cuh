// Rows of logits in pieces, a block for each.
#pragma once

#include "row_losses.cuh"

#ifndef ALIGNED  // every row starts at a vector and ends with one
#define ALIGNED 0
#endif

// A thread's vectors in a piece of a row: the first of them, how many elements there are from it on, and those beside the vectors.
struct Part {
    int first, left;
    Peel peel;

    __device__ __forceinline__ Part(const T* row, int n, int piece) : peel{0, n, 0} {
        if (!ALIGNED) peel = Peel::of<WIDTH>(row, n);
        first = peel.head + (piece * UNROLL * GROUP + threadIdx.x) * WIDTH, left = peel.tail - first;
    }
    template <typename F>
    __device__ __forceinline__ void each(F f) const {  // f(vector, its place after the first)
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (u * GROUP * WIDTH < left) f(u, u * GROUP * WIDTH);
    }
    __device__ __forceinline__ int beside(int piece) const {  // of this thread, or -1
        return !ALIGNED && piece == 0 && (int)threadIdx.x < peel.few ? peel.beside(threadIdx.x) : -1;
    }
};
