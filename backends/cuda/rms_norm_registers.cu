// rms_norm over rows that stay in registers: one read, one write. x, y: [rows, n], weight: [n].
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(GROUP * ROWS, MIN_BLOCKS)
rms_norm_registers(
    const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ y, i64 rows, int n, float eps) {
    __shared__ float scratch[32];
    const i64 row = blockIdx.x * (i64)ROWS + threadIdx.y;
    const int valid = row < rows ? n : 0;
    Elements held[VECTORS], w[VECTORS];
    load_row(held, x + row * n, valid);
    // Asked for before the reduction, which hides their latency, as far as 1,024 threads have registers for both.
    constexpr bool EARLY = VECTORS * WIDTH <= 32 && sizeof(held) <= 64;
    if (EARLY) for_each_vector(valid, [&](int i, int v) { w[v] = load<WIDTH>(weight + i); });
    float squares = 0.0f;
    for_each_vector(valid, [&](int, int v) {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) squares = fmaf(to_float(held[v].v[j]), to_float(held[v].v[j]), squares);
    });
    const float r = 1.0f / sqrtf(group_reduce<GROUP>(squares, scratch, Sum()) / n + eps);
    stay_packed(held);
    for_each_vector(valid, [&](int i, int v) {
        if (!EARLY) w[v] = load<WIDTH>(weight + i);
        float z[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) z[j] = to_float(held[v].v[j]) * r * to_float(w[v].v[j]);
        store(y + row * n + i, from_floats<T>(z));
    });
}
