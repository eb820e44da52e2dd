// copy_column by zero copy: the device reads mapped pinned host memory itself. x: [M] elements `stride` apart, y: [M].
#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT unsigned int
#endif

using T = ELEMENT;

extern "C" __global__ void copy_column_zero_copy(const T* __restrict__ x, T* __restrict__ y, i64 M, i64 stride) {
    const i64 m = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (m < M) y[m] = x[m * stride];
}
