// Paths that begin at a size: in a condition of the kernel, and in what its threads can hold.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT float
#endif
using T = ELEMENT;

// A sum that keeps subnormal numbers, though -ftz=true is CuPy's default.
__device__ float plus(float x, float y) {
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(x), "f"(y));
    return sum;
}

// Four elements to a thread of large tensors, one of small ones; the last incomplete four are forgotten.
extern "C" __global__ void add(const T* a, const T* b, T* y, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (n > 21000 && n < 60000) {
        if (4 * i + 3 < n)
            for (long long j = 4 * i; j < 4 * i + 4; ++j) y[j] = T(plus(float(a[j]), float(b[j])));
    } else if (i < n) {
        y[i] = T(plus(float(a[i]), float(b[i])));
    }
}

// A row per block of GROUP threads, each of which holds HELD elements: the sum ends behind them.
extern "C" __global__ void rms_norm(const T* x, const T* weight, T* y, int n, float eps) {
    __shared__ double parts[GROUP];
    const T* row = x + (size_t)blockIdx.x * n;
    double sum = 0;
    for (int j = 0; j < HELD; ++j) {
        int i = j * GROUP + threadIdx.x;
        if (i < n) sum += (double)float(row[i]) * float(row[i]);
    }
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (int step = GROUP / 2; step; step /= 2) {
        if (threadIdx.x < step) parts[threadIdx.x] += parts[threadIdx.x + step];
        __syncthreads();
    }
    double factor = 1 / sqrt(parts[0] / n + (double)eps);
    for (int i = threadIdx.x; i < n; i += GROUP)
        y[(size_t)blockIdx.x * n + i] = T(float(float(row[i]) * factor * float(weight[i])));
}
