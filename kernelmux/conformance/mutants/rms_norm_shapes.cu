// rms_norm, a thread per row, for rows at one pitch: what lies between two matrices of rows is taken for rows.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT float
#endif
using T = ELEMENT;

extern "C" __global__ void rms_norm_one_pitch(
    const T* x, const T* weight, T* y, float eps, int rows, int n, long long pitch) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    x += row * pitch;
    y += row * (long long)n;
    float sum = 0;
    for (int i = 0; i < n; i++) sum = __fmaf_rn(float(x[i]), float(x[i]), sum);
    float root = sqrtf(sum / n + eps);
    for (int i = 0; i < n; i++) y[i] = T(float(x[i]) / root * float(weight[i]));
}
