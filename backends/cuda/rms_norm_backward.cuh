// What the two kernels that keep grad_weight in registers share.
#pragma once

#include "rows.cuh"

// sums += {x^2, g * w * x}
__device__ __forceinline__ void add_products(float2& sums, const Elements& x, const Elements& g, const Elements& w) {
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        const float z = to_float(x.v[j]);
        sums.x = fmaf(z, z, sums.x);
        sums.y = fmaf(to_float(g.v[j]) * to_float(w.v[j]), z, sums.y);
    }
}

// r * g * w - x * c; adds g * x * r to `sum`.
__device__ __forceinline__ Elements gradient(
    const Elements& x, const Elements& g, const Elements& w, float r, float c, float (&sum)[WIDTH]) {
    float d[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        const float z = to_float(x.v[j]), gr = to_float(g.v[j]) * r;
        d[j] = gr * to_float(w.v[j]) - z * c;
        sum[j] = fmaf(gr, z, sum[j]);
    }
    return from_floats<T>(d);
}

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
