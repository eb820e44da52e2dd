// Gradients of y = x * r * weight, r = 1 / sqrt(mean(x^2) + eps), for rows of any length. grad_out, x, grad_x: [rows, n].
//   grad_x      = r * g * weight - x * c,  c = r^3 * mean(g * weight * x)
//   grad_weight = sum over the rows of g * x * r
// Two kernels: r and c of every row, then tiles of columns that walk down a chunk of rows and leave one partial
// sum of grad_weight each.
#include "rows.cuh"

struct RowStats {
    float r, c;
};

extern "C" __global__ void __launch_bounds__(GROUP)
rms_norm_backward_stats(
    const T* __restrict__ grad_out, const T* __restrict__ x, const T* __restrict__ weight, float* __restrict__ stats,
    int n, float eps) {
    __shared__ float scratch[2][32];
    const i64 start = blockIdx.x * (i64)n;
    float squares = 0.0f, dot = 0.0f;
#pragma unroll UNROLL
    for (int i = threadIdx.x * WIDTH; i < n; i += GROUP * WIDTH) {
        const Elements held = load<WIDTH>(x + start + i), g = load<WIDTH>(grad_out + start + i);
        const Elements w = load<WIDTH>(weight + i);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            const float z = to_float(held.v[j]);
            squares = fmaf(z, z, squares);
            dot = fmaf(to_float(g.v[j]) * to_float(w.v[j]), z, dot);
        }
    }
    squares = group_reduce<GROUP>(squares, scratch[0], Sum());
    dot = group_reduce<GROUP>(dot, scratch[1], Sum());
    if (threadIdx.x == 0) {
        const float r = 1.0f / sqrtf(squares / n + eps);
        stats[2 * (i64)blockIdx.x] = r;
        stats[2 * (i64)blockIdx.x + 1] = r * r * r * (dot / n);
    }
}

extern "C" __global__ void __launch_bounds__(GROUP)
rms_norm_backward_columns(
    const T* __restrict__ grad_out, const T* __restrict__ x, const T* __restrict__ weight,
    const float* __restrict__ stats, T* __restrict__ grad_x, float* __restrict__ partial, i64 rows, int n, int chunk) {
    const int i = (blockIdx.x * GROUP + threadIdx.x) * WIDTH;
    if (i >= n) return;
    const i64 first = blockIdx.y * (i64)chunk, last = min(rows, first + chunk);
    const Elements w = load<WIDTH>(weight + i);
    float sum[WIDTH] = {};
    for (i64 start = first; start < last; start += UNROLL) {
        Elements held[UNROLL], g[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u < last) {
                held[u] = load_streaming<WIDTH>(x + (start + u) * n + i);
                g[u] = load_streaming<WIDTH>(grad_out + (start + u) * n + i);
            }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 row = start + u;
            if (row >= last) break;
            const float r = stats[2 * row], c = stats[2 * row + 1];
            float d[WIDTH];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                const float z = to_float(held[u].v[j]), gr = to_float(g[u].v[j]) * r;
                d[j] = gr * to_float(w.v[j]) - z * c;
                sum[j] = fmaf(gr, z, sum[j]);
            }
            store_streaming(grad_x + row * n + i, from_floats<T>(d));
        }
    }
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) partial[blockIdx.y * (i64)n + i + j] = sum[j];
}
