// Rows that start anywhere, read in whole vectors from the first aligned address of each.
#pragma once

#include "common.cuh"

// The columns [head, tail) of a row are whole vectors; beside(k), k < few, are the others: fewer than a vector at each end.
struct Peel {
    int head, tail, few;

    template <int Width, typename T>
    static __device__ __forceinline__ Peel of(const T* row, int n) {
        const int past = (int)(reinterpret_cast<unsigned long long>(row) / sizeof(T) % Width);
        const int head = min(n, (Width - past) % Width), tail = head + (n - head) / Width * Width;
        return {head, tail, head + n - tail};
    }
    __device__ __forceinline__ int beside(int k) const { return k < head ? k : tail + k - head; }
};
