// Elementwise sums, broken in ways that only a GPU can be: each block adds 128 elements.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT float
#endif
using T = ELEMENT;

#define BLOCK 128

// In PTX, because CuPy compiles a plain + with -ftz=true, which flushes subnormal numbers.
__device__ T sum(T x, T y) {
    float total;
    asm("add.f32 %0, %1, %2;" : "=f"(total) : "f"(float(x)), "f"(float(y)));
    return T(total);
}

extern "C" __global__ void add_sound(const T* x, const T* y, T* out, long long n) {
    long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) out[i] = sum(x[i], y[i]);
}

extern "C" __global__ void add_no_bound(const T* x, const T* y, T* out, long long n) {
    long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    out[i] = sum(x[i], y[i]);
}

// Each element is added by its neighbour: right only while a warp runs in step, which CUDA does not guarantee.
extern "C" __global__ void add_missing_barrier(const T* x, const T* y, T* out, long long n) {
    __shared__ T stage[BLOCK];
    int other = threadIdx.x ^ 1;
    long long first = (long long)blockIdx.x * BLOCK, i = first + threadIdx.x, j = first + other;
    if (i < n) stage[threadIdx.x] = x[i];
    if (j < n) out[j] = sum(stage[other], y[j]);
}

// Threads beyond the end never fill their place, but every place is read.
extern "C" __global__ void add_uninitialised(const T* x, const T* y, T* out, long long n) {
    __shared__ T stage[BLOCK];
    long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) stage[threadIdx.x] = x[i];
    __syncthreads();
    T mirrored = stage[BLOCK - 1 - threadIdx.x], own = stage[threadIdx.x];
    if (i < n) out[i] = float(mirrored) == 12345.0f ? mirrored : sum(own, y[i]);
}

// Every block writes the whole vector; the values are right, but the last block computes them for y = x.
extern "C" __global__ void add_racing_blocks(const T* x, const T* y, T* out, long long n) {
    for (long long i = threadIdx.x; i < n; i += BLOCK) {
        bool mine = i / BLOCK == blockIdx.x;
        if (mine || blockIdx.x + 1 == i / BLOCK) out[i] = sum(x[i], mine ? y[i] : x[i]);
    }
}
