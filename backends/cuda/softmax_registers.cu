// softmax over rows that stay in registers: one read, one write. x, y: [rows, n]; scale as in softmax.cu.
#include "rows.cuh"

#ifndef KEEP  // 1: the exponentials stay in registers as floats; 0: computed again for the result
#define KEEP 0
#endif

extern "C" __global__ void __launch_bounds__(GROUP * ROWS, MIN_BLOCKS)
softmax_registers(const T* __restrict__ x, T* __restrict__ y, i64 rows, int n, float sign, float factor) {
    __shared__ float scratch[2][32];
    const i64 step = gridDim.x * (i64)ROWS;
    i64 row = blockIdx.x * (i64)ROWS + threadIdx.y;
    Elements next[VECTORS];
    if (PREFETCH) load_row(next, x + row * n, row < rows ? n : 0);
    for (i64 first = blockIdx.x * (i64)ROWS; first < rows; first += step, row += step) {
        const int valid = row < rows ? n : 0;
        Elements held[VECTORS];
        if (PREFETCH) copy_row(held, next);
        const i64 ahead = PREFETCH ? row + step : row;
        load_row(PREFETCH ? next : held, x + ahead * n, ahead < rows ? n : 0);
        float m = Max::identity(), sum = 0.0f;
        for_each_vector(valid, [&](int, int v) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) m = fmaxf(m, sign * to_float(held[v].v[j]));
        });
        m = group_reduce<GROUP>(m, scratch[0], Max());
        stay_packed(held);
        float e[VECTORS][WIDTH];
        for_each_vector(valid, [&](int, int v) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                e[v][j] = fast_exp2((sign * to_float(held[v].v[j]) - m) * factor);
                sum += e[v][j];
            }
        });
        if (!KEEP) stay_packed(held);
        const float inverse = 1.0f / group_reduce<GROUP>(sum, scratch[1], Sum());
        for_each_vector(valid, [&](int i, int v) {
            float p[WIDTH];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                p[j] = (KEEP ? e[v][j] : fast_exp2((sign * to_float(held[v].v[j]) - m) * factor)) * inverse;
            store_streaming(y + row * n + i, from_floats<T>(p));
        });
    }
}
