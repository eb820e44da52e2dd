// Blocks draw the number of their tile: which block does what changes, what comes out does not.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT float
#endif
using T = ELEMENT;

extern "C" __global__ void transpose_drawn(const T* x, T* y, unsigned* next, int m, int n, int tiles_n) {
    __shared__ unsigned tile;
    if (threadIdx.x == 0) tile = atomicAdd(next, 1);
    __syncthreads();
    size_t row = (size_t)(tile / tiles_n) * 8 + threadIdx.x / 8, column = (size_t)(tile % tiles_n) * 8 + threadIdx.x % 8;
    if (row < m && column < n) y[column * m + row] = x[row * n + column];
}
