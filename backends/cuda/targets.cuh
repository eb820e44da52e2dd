// Rows of logits with a target class each, read 16 bytes at a time wherever they start.
#pragma once

#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT float
#endif

using T = ELEMENT;

// counts: the row is not ignored; is_class: its target is one of the classes, so that it may be read.
struct Target {
    i64 value;
    bool counts, is_class;
    __device__ __forceinline__ Target(i64 target, int classes, i64 ignored)
        : value(target), counts(target != ignored), is_class(target >= 0 && target < classes) {}
};

// Whole accesses from `lead` to `tail`, the first and the last aligned address in a row; beside(k), k < few, are the other elements.
struct Peeled {
    int lead, tail, few;
    template <int Width>
    static __device__ __forceinline__ Peeled of(const T* row, int n) {
        const int past = (int)(reinterpret_cast<unsigned long long>(row) / sizeof(T) % Width);
        const int lead = min(n, (Width - past) % Width), tail = lead + (n - lead) / Width * Width;
        return {lead, tail, lead + n - tail};
    }
    __device__ __forceinline__ int beside(int k) const { return k < lead ? k : tail + k - lead; }
};
