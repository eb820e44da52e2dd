// Rows of logits with a target class each, read 16 bytes at a time wherever they start.
#pragma once

#include "peel.cuh"

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
