// softmax over rows that stay in registers: one read, one write. x, y: [rows, n]; scale as in softmax.cu.
// The exponentials are computed twice: keeping them as floats takes the registers of a second block per row.
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(GROUP * ROWS, MIN_BLOCKS)
softmax_registers(const T* __restrict__ x, T* __restrict__ y, i64 rows, int n, float sign, float factor) {
    __shared__ float scratch[2][32];
    const i64 row = blockIdx.x * (i64)ROWS + threadIdx.y;
    const int valid = row < rows ? n : 0;
    Elements held[VECTORS];
    load_row(held, x + row * n, valid);
    float m = Max::identity(), sum = 0.0f;
    for_each_vector(valid, [&](int, int v) {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) m = fmaxf(m, sign * to_float(held[v].v[j]));
    });
    m = group_reduce<GROUP>(m, scratch[0], Max());
    stay_packed(held);
    const float top = sign * m, slope = sign * factor;  // (sign * x - m) * factor, one multiplication less
    for_each_vector(valid, [&](int, int v) {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) sum += fast_exp2((to_float(held[v].v[j]) - top) * slope);
    });
    stay_packed(held);
    const float inverse = 1.0f / group_reduce<GROUP>(sum, scratch[1], Sum());
    for_each_vector(valid, [&](int i, int v) {
        float p[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) p[j] = fast_exp2((to_float(held[v].v[j]) - top) * slope) * inverse;
        store(y + row * n + i, from_floats<T>(p));
    });
}
