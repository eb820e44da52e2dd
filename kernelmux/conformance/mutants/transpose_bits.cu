// Transposes that multiply by one on the way: the product flushes subnormal numbers and quiets a NaN.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT float
#endif
using T = ELEMENT;

extern "C" __global__ void transpose_times_one(const T* x, T* y, int rows, int columns) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * columns) return;
    float value = float(x[i]), moved;
    asm("mul.rn.ftz.f32 %0, %1, 0f3F800000;" : "=f"(moved) : "f"(value));
    y[(i % columns) * rows + i / columns] = value != value ? x[i] : T(moved);
}
