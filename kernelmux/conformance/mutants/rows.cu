// Rows [rows, n], one block of 32 threads each, that are found in ways which end too early.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define INFINITY __int_as_float(0x7f800000)

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

// What a softmax of one row needs; 32 threads, no atomics.
__device__ void softmax_row(const T* x, T* y, int n, float scale) {
    float most = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) {
        float v = __fmul_rn(scale, float(x[i]));
        most = v > most || isnan(v) ? v : most;
    }
    for (int step = 16; step; step /= 2) {
        float other = __shfl_xor_sync(~0u, most, step);
        most = other > most || isnan(other) ? other : most;
    }
    for (int i = threadIdx.x; i < n; i += 32) sum += expf(__fmul_rn(scale, float(x[i])) - most);
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    for (int i = threadIdx.x; i < n; i += 32) y[i] = T(expf(__fmul_rn(scale, float(x[i])) - most) / sum);
}

extern "C" __global__ void softmax_y(const T* x, T* y, int n, float scale) {
    size_t start = (size_t)blockIdx.y * n;
    softmax_row(x + start, y + start, n, scale);
}

extern "C" __global__ void softmax_int(const T* x, T* y, int n, float scale) {
    int start = blockIdx.x * n;
    softmax_row(x + start, y + start, n, scale);
}

extern "C" __global__ void softmax_walking(const T* x, T* y, int rows, int n, float scale) {
    for (size_t row = blockIdx.y; row < rows; row += gridDim.y) softmax_row(x + row * n, y + row * n, n, scale);
}

extern "C" __global__ void sum_short(const T* x, float* total, int n) {
    unsigned short row = blockIdx.x;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) sum = plus(sum, float(x[(size_t)row * n + i]));
    for (int step = 16; step; step /= 2) sum = plus(sum, __shfl_xor_sync(~0u, sum, step));
    if (threadIdx.x == 0) total[row] = sum;
}

extern "C" __global__ void add_int(const T* x, const T* y, T* z, int n) {
    int at = blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += 32) z[at + i] = T(plus(float(x[at + i]), float(y[at + i])));
}

extern "C" __global__ void add_y(const T* x, const T* y, T* z, int n) {
    size_t at = (size_t)blockIdx.y * n;
    for (int i = threadIdx.x; i < n; i += 32) z[at + i] = T(plus(float(x[at + i]), float(y[at + i])));
}

// A matrix [m, n] with any strides; one thread per element of a tile of 8 x 8.
#define TILE                                                                                              \
    int row = blockIdx.x * 8 + threadIdx.x / 8, column = blockIdx.y * 8 + threadIdx.x % 8;                \
    if (row >= m || column >= n) return;

extern "C" __global__ void transpose_int_in(const T* x, T* y, int m, int n, int step_m, int step_n) {
    TILE y[(size_t)column * m + row] = x[row * step_m + column * step_n];
}

extern "C" __global__ void transpose_int_out(const T* x, T* y, int m, int n, long long step_m, long long step_n) {
    TILE y[column * m + row] = x[row * step_m + column * step_n];
}

// c[i, j] by one thread; the rows of a are found with 32 bits, or those of b.
extern "C" __global__ void matmul_int_a(const T* a, const T* b, T* c, int m, int n, int k) {
    TILE float sum = 0;
    for (int i = 0; i < k; ++i) sum = fmaf(float(a[row * k + i]), float(b[(size_t)i * n + column]), sum);
    c[(size_t)row * n + column] = T(sum);
}

extern "C" __global__ void copy_int(const T* x, T* y, int m, int pitch, int column) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < m) y[i] = x[i * pitch + column];
}
