// rms_norm of rows of any length: y = x * r * weight, r = 1 / sqrt(mean(x^2) + eps). x, y: [rows, n], weight: [n].
//   naive     a block per row, two passes, one element per access
//   two_pass  the same in 16-byte accesses; the second read of a row finds it in L2
#include "rows.cuh"

__device__ __forceinline__ float inverse_rms(float squares, int n, float eps) { return 1.0f / sqrtf(squares / n + eps); }

extern "C" __global__ void __launch_bounds__(GROUP)
rms_norm_naive(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ y, int n, float eps) {
    __shared__ float scratch[32];
    const i64 start = blockIdx.x * (i64)n;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += GROUP) {
        const float z = to_float(x[start + i]);
        squares += z * z;
    }
    const float r = inverse_rms(group_reduce<GROUP>(squares, scratch, Sum()), n, eps);
    for (int i = threadIdx.x; i < n; i += GROUP)
        y[start + i] = from_float<T>(to_float(x[start + i]) * r * to_float(weight[i]));
}

extern "C" __global__ void __launch_bounds__(GROUP)
rms_norm_two_pass(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ y, int n, float eps) {
    __shared__ float scratch[32];
    const T* const row = x + blockIdx.x * (i64)n;
    float squares = 0.0f;
#pragma unroll UNROLL
    for (int i = threadIdx.x * WIDTH; i < n; i += GROUP * WIDTH) {
        const Elements held = load<WIDTH>(row + i);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) squares = fmaf(to_float(held.v[j]), to_float(held.v[j]), squares);
    }
    const float r = inverse_rms(group_reduce<GROUP>(squares, scratch, Sum()), n, eps);
#pragma unroll UNROLL
    for (int i = threadIdx.x * WIDTH; i < n; i += GROUP * WIDTH) {
        const Elements held = load_streaming<WIDTH>(row + i), w = load<WIDTH>(weight + i);
        float z[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) z[j] = to_float(held.v[j]) * r * to_float(w.v[j]);
        store_streaming(y + blockIdx.x * (i64)n + i, from_floats<T>(z));
    }
}
