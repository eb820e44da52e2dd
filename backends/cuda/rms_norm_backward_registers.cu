// Gradients of rms_norm over rows that stay in registers: grad_out and x are read once, grad_x is written once.
// A block walks down rows gridDim.x * ROWS apart and leaves its sum of g * x * r, one partial of grad_weight: [gridDim.x, n].
#include "rms_norm_backward.cuh"

extern "C" __global__ void __launch_bounds__(GROUP * ROWS, 1)
rms_norm_backward_registers(
    const T* __restrict__ grad_out, const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ grad_x,
    float* __restrict__ partial, i64 rows, int n, float eps) {
    __shared__ float2 scratch[2][32];  // used in turn: one barrier per row suffices
    Elements w[VECTORS];
    float sum[VECTORS][WIDTH] = {};
    for_each_vector(n, [&](int i, int v) { w[v] = load<WIDTH>(weight + i); });
    int turn = 0;
    for (i64 first = blockIdx.x * (i64)ROWS; first < rows; first += gridDim.x * (i64)ROWS, turn ^= 1) {
        const i64 row = first + threadIdx.y;
        const int valid = row < rows ? n : 0;
        Elements held[VECTORS], g[VECTORS];
        load_row(held, x + row * n, valid);
        load_row(g, grad_out + row * n, valid);
        float2 both = {};  // sums of x^2 and of grad_out * weight * x
        for_each_vector(valid, [&](int, int v) { add_products(both, held[v], g[v], w[v]); });
        both = group_sum<GROUP>(both, scratch[turn]);
        stay_packed(held);
        stay_packed(g);
        stay_packed(w);
        const float r = 1.0f / sqrtf(both.x / n + eps), c = r * r * r * (both.y / n);
        for_each_vector(valid, [&](int i, int v) { store(grad_x + row * n + i, gradient(held[v], g[v], w[v], r, c, sum[v])); });
    }
    add_to_partial(sum, partial + blockIdx.x * (i64)n, n);
}
