// rms_norm in two launches, with the factor of each row in memory that belongs to the module.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT float
#endif
using T = ELEMENT;

__device__ float factor[1 << 17];

extern "C" __global__ void factors(const T* x, int n, float eps) {
    const T* row = x + (size_t)blockIdx.x * n;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) sum += float(row[i]) * float(row[i]);
    for (int step = 16; step; step /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, step));
    if (threadIdx.x == 0) factor[blockIdx.x] = 1 / sqrtf(sum / n + eps);
}

extern "C" __global__ void scaled(const T* x, const T* weight, T* y, int n) {
    size_t start = (size_t)blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += 32)
        y[start + i] = T(float(x[start + i]) * factor[blockIdx.x] * float(weight[i]));
}
