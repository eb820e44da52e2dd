// The end of an int8 product: the sum itself, or scaled in fp32 and rounded once.
//
//   -DSCALED=0 or 1   -DSCALES_A=step -DSCALES_B=step   1: a scale per row (column), 0: one for all; null where there is none
#pragma once
#include "matmul.cuh"

template <typename Out>
__device__ __forceinline__ Out ended(int sum, float left, float right) {
    if constexpr (SCALED) return from_float<Out>((float)sum * left * right);
    else return sum;
}

__device__ __forceinline__ float scale_of(const float* scales, i64 at) { return SCALED && scales ? __ldg(scales + at) : 1.0f; }
