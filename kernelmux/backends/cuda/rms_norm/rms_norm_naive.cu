// rms_norm in two passes, one element per access; a block per row. x, y: [rows, n], weight: [n].
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(GROUP)
rms_norm_naive(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ y, int n, float eps) {
    __shared__ float scratch[32];
    const i64 start = blockIdx.x * (i64)n;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += GROUP) {
        const float z = to_float(x[start + i]);
        squares += z * z;
    }
    const float r = 1.0f / sqrtf(group_reduce<GROUP>(squares, scratch, Sum()) / n + eps);
    for (int i = threadIdx.x; i < n; i += GROUP)
        y[start + i] = from_float<T>(to_float(x[start + i]) * r * to_float(weight[i]));
}
