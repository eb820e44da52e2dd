// How many rows count, where the mean of their losses is wanted. Of few rows each warp counts them itself, while its logits are on
// their way: a launch ahead for it would cost more than the rest.
//
//   -DFEW=1   rows; a kernel also lets the next one start, which adds their losses up
//   -DMEAN=1  is wanted
#pragma once

#include "dependent_launch.cuh"
#include "targets.cuh"

#ifndef FEW
#define FEW 0
#endif
#ifndef MEAN
#define MEAN 0
#endif

// By a whole warp, in every lane.
__device__ __forceinline__ float rows_that_count(const i64* target, i64 rows, i64 ignored, int thread) {
    int count = 0;
#pragma unroll 4
    for (i64 row = thread % 32; row < rows; row += 32) count += target[row] != ignored;
    return warp_reduce<32>((float)count, Sum());
}

// Of the gradient of a row: 1 / count, or 1. counted: by a launch ahead, or null.
__device__ __forceinline__ float weight_of_rows(const float* counted, const i64* target, i64 rows, i64 ignored, int thread) {
    if (FEW) return MEAN ? 1.0f / rows_that_count(target, rows, ignored, thread) : 1.0f;
    return counted ? 1.0f / counted[0] : 1.0f;
}

// The loss of a row with no class, 0 or NaN. The loss of the only row is the mean: NaN if it does not count.
__device__ __forceinline__ float loss_without_class(float value, i64 rows) {
    return FEW && MEAN && rows == 1 ? nanf("") : value;
}
