// softmax in three passes over memory, one element per access. x: [outer, n, inner]; a block per row; log_sum_exp.cuh has
// what sign and factor are.
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(GROUP)
softmax_naive(const T* __restrict__ x, T* __restrict__ y, int n, i64 inner, float sign, float factor) {
    __shared__ float scratch[2][32];
    const i64 start = blockIdx.x / inner * n * inner + blockIdx.x % inner;
    float m = Max::identity();
    for (int i = threadIdx.x; i < n; i += GROUP) m = fmaxf(m, sign * to_float(x[start + i * inner]));
    m = group_reduce<GROUP>(m, scratch[0], Max());
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += GROUP)
        sum += fast_exp2((sign * to_float(x[start + i * inner]) - m) * factor);
    sum = group_reduce<GROUP>(sum, scratch[1], Sum());
    for (int i = threadIdx.x; i < n; i += GROUP) {
        const float e = fast_exp2((sign * to_float(x[start + i * inner]) - m) * factor);
        y[start + i * inner] = from_float<T>(e / sum);
    }
}
