// rms_norm over rows that stay in registers, by blocks that stay: they ask for their next row before they work on this one.
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(GROUP * ROWS, MIN_BLOCKS)
rms_norm_prefetch(
    const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ y, i64 rows, int n, float eps) {
    __shared__ float scratch[2][32];  // used in turn: one barrier per row suffices
    const i64 step = gridDim.x * (i64)ROWS;
    i64 row = blockIdx.x * (i64)ROWS + threadIdx.y;
    Elements next[VECTORS], w[VECTORS];

    for_each_vector(n, [&](int i, int v) { w[v] = load<WIDTH>(weight + i); });
    load_row(next, x + row * n, row < rows ? n : 0);
    int turn = 0;
    for (i64 first = blockIdx.x * (i64)ROWS; first < rows; first += step, row += step, turn ^= 1) {
        const int valid = row < rows ? n : 0;
        Elements held[VECTORS];
        copy_row(held, next);
        const i64 ahead = row + step;
        load_row(next, x + ahead * n, ahead < rows ? n : 0);
        float squares = 0.0f;
        for_each_vector(valid, [&](int, int v) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) squares = fmaf(to_float(held[v].v[j]), to_float(held[v].v[j]), squares);
        });
        const float r = 1.0f / sqrtf(group_reduce<GROUP>(squares, scratch[turn], Sum()) / n + eps);
        stay_packed(held);
        stay_packed(w);
        for_each_vector(valid, [&](int i, int v) {
            float z[WIDTH];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) z[j] = to_float(held[v].v[j]) * r * to_float(w[v].v[j]);
            store_streaming(y + row * n + i, from_floats<T>(z));
        });
    }
}
