// Sums of rows [rows, n] by blocks of 256 elements, put together in orders that change, and in one that does not.
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

#define BLOCK 256

// The sum of this block's part of row blockIdx.y, times itself if SQUARES; in every thread.
template <bool SQUARES>
__device__ float part(const T* x, int n) {
    __shared__ float stage[BLOCK];
    int i = blockIdx.x * BLOCK + threadIdx.x;
    float v = i < n ? float(x[(size_t)blockIdx.y * n + i]) : 0.0f;
    stage[threadIdx.x] = SQUARES ? __fmul_rn(v, v) : v;
    __syncthreads();
    for (int step = BLOCK / 2; step; step /= 2) {
        if (threadIdx.x < step) stage[threadIdx.x] = plus(stage[threadIdx.x], stage[threadIdx.x + step]);
        __syncthreads();
    }
    return stage[0];
}

extern "C" __global__ void sum_atomics(const T* x, float* total, int n) {
    float sum = part<false>(x, n);
    if (threadIdx.x == 0) atomicAdd(total + blockIdx.y, sum);
}

// In fp64, as atomics on fp32 flush subnormal sums.
extern "C" __global__ void sum_atomics_wide(const T* x, double* total, int n) {
    float sum = part<false>(x, n);
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(sum));  // double(sum) flushes with -ftz=true
    if (threadIdx.x == 0) atomicAdd(total + blockIdx.y, wide);
}

extern "C" __global__ void squares_atomics(const T* x, float* total, int n) {
    float sum = part<true>(x, n);
    if (threadIdx.x == 0) atomicAdd(total + blockIdx.y, sum);
}

// The last block of a row to arrive adds the parts: by number, or as they arrived.
template <bool BY_NUMBER>
__device__ void last_adds(const T* x, float* parts, unsigned* arrived, float* total, int n) {
    float sum = part<false>(x, n);
    if (threadIdx.x) return;
    float* row = parts + (size_t)blockIdx.y * gridDim.x;
    unsigned turn = 0;
    if (!BY_NUMBER) turn = atomicAdd(arrived + 2 * blockIdx.y, 1);
    atomicExch(row + (BY_NUMBER ? blockIdx.x : turn), sum);
    __threadfence();
    if (atomicAdd(arrived + 2 * blockIdx.y + 1, 1) + 1 < gridDim.x) return;
    __threadfence();
    float all = 0;
    for (int i = 0; i < gridDim.x; ++i) all = plus(all, ((volatile float*)row)[i]);
    total[blockIdx.y] = all;
}

extern "C" __global__ void sum_arrival(const T* x, float* parts, unsigned* arrived, float* total, int n) {
    last_adds<false>(x, parts, arrived, total, n);
}

extern "C" __global__ void sum_ordered(const T* x, float* parts, unsigned* arrived, float* total, int n) {
    last_adds<true>(x, parts, arrived, total, n);
}
