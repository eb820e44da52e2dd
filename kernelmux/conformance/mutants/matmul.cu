// c += a b in fp32 by parts of K: each block takes 64 elements of K for a tile of 8 x 8 of c.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT float
#endif
using T = ELEMENT;

extern "C" __global__ void split_k(const T* a, const T* b, float* c, int m, int n, int k, int tiles_n) {
    int row = blockIdx.x / tiles_n * 8 + threadIdx.x / 8, column = blockIdx.x % tiles_n * 8 + threadIdx.x % 8;
    if (row >= m || column >= n) return;
    float sum = 0;
    int last = min(k, 64 * ((int)blockIdx.y + 1));
    for (int i = 64 * blockIdx.y; i < last; ++i)
        sum = fmaf(float(a[(size_t)row * k + i]), float(b[(size_t)i * n + column]), sum);
    atomicAdd(c + (size_t)row * n + column, sum);
}
