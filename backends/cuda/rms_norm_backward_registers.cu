// Gradients of rms_norm over rows that stay in registers: grad_out and x are read once, grad_x is written once.
// A block walks down rows gridDim.x * ROWS apart and leaves its sum of g * x * r, one partial of grad_weight: [gridDim.x, n].
#include "rows.cuh"

// The ROWS sums of the block, added in order.
__device__ __forceinline__ void add_to_partial(const float (&sum)[VECTORS][WIDTH], float* partial, int n) {
    __shared__ float total[ROWS > 1 ? GROUP * VECTORS * WIDTH : 1];
    for (int r = 0; r < ROWS; ++r) {
        float* const out = r == ROWS - 1 ? partial : total;
        if (threadIdx.y == r)
            for_each_vector(n, [&](int i, int v) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) out[i + j] = r > 0 ? total[i + j] + sum[v][j] : sum[v][j];
            });
        if (ROWS > 1) __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(GROUP * ROWS, MIN_BLOCKS)
rms_norm_backward_registers(
    const T* __restrict__ grad_out, const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ grad_x,
    float* __restrict__ partial, i64 rows, int n, float eps) {
    __shared__ float2 scratch[2][32];  // used in turn: one barrier per row suffices
    Elements w[VECTORS], next_x[VECTORS], next_g[VECTORS];
    float sum[VECTORS][WIDTH] = {};
    for_each_vector(n, [&](int i, int v) { w[v] = load<WIDTH>(weight + i); });
    const i64 step = gridDim.x * (i64)ROWS;
    i64 row = blockIdx.x * (i64)ROWS + threadIdx.y;
    if (PREFETCH) {
        load_row(next_x, x + row * n, row < rows ? n : 0);
        load_row(next_g, grad_out + row * n, row < rows ? n : 0);
    }
    int turn = 0;
    for (i64 first = blockIdx.x * (i64)ROWS; first < rows; first += step, row += step, turn ^= 1) {
        const int valid = row < rows ? n : 0;
        Elements held[VECTORS], g[VECTORS];
        if (PREFETCH) {
            copy_row(held, next_x);
            copy_row(g, next_g);
        }
        const i64 ahead = PREFETCH ? row + step : row;
        load_row(PREFETCH ? next_x : held, x + ahead * n, ahead < rows ? n : 0);
        load_row(PREFETCH ? next_g : g, grad_out + ahead * n, ahead < rows ? n : 0);
        float2 both = {};  // sums of x^2 and of grad_out * weight * x
        for_each_vector(valid, [&](int, int v) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                const float z = to_float(held[v].v[j]);
                both.x = fmaf(z, z, both.x);
                both.y = fmaf(to_float(g[v].v[j]) * to_float(w[v].v[j]), z, both.y);
            }
        });
        both = group_sum<GROUP>(both, scratch[turn]);
        stay_packed(held);
        stay_packed(g);
        stay_packed(w);
        const float r = 1.0f / sqrtf(both.x / n + eps), c = r * r * r * (both.y / n);
        for_each_vector(valid, [&](int i, int v) {
            float d[WIDTH];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                const float z = to_float(held[v].v[j]), gr = to_float(g[v].v[j]) * r;
                d[j] = gr * to_float(w[v].v[j]) - z * c;
                sum[v][j] = fmaf(gr, z, sum[v][j]);
            }
            store_streaming(grad_x + row * n + i, from_floats<T>(d));
        });
    }
    add_to_partial(sum, partial + blockIdx.x * (i64)n, n);
}
