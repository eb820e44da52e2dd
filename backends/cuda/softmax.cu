// softmax of rows of any length: y = exp(scale * (x - m)) / sum(...) along an axis; the host splits scale into sign and
// factor = |scale| * log2(e), so that m = max(sign * x) is right for negative scales and x - m stays exact.
//   naive      x: [outer, n, inner]; a block per row, three passes over memory, one element per access
//   online     x: [rows, n]; maximum and sum in one pass, 16-byte accesses
//   columns    x: [outer, n, inner]; the same, neighbouring threads own neighbouring columns
// fmaxf ignores NaN; it gets into the sum through exp2 and from there into the whole row.
#include "rows.cuh"

#ifndef TILE_INNER  // columns: threads side by side; GROUP / TILE_INNER of them share a column
#define TILE_INNER 32
#endif

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

// The maximum m of what was seen and the sum of exp2((x - m) * factor); rescaled whenever m grows.
struct Running {
    float m = Max::identity(), sum = 0.0f;

    __device__ __forceinline__ void rescale(float larger, float factor) {
        if (sum != 0.0f) sum *= fast_exp2((m - larger) * factor);
        m = larger;
    }
    // While everything was -inf there is no maximum to subtract.
    __device__ __forceinline__ void add(float z, float factor) {
        sum += fast_exp2((z - (m == Max::identity() ? 0.0f : m)) * factor);
    }
};

extern "C" __global__ void __launch_bounds__(GROUP)
softmax_online(const T* __restrict__ x, T* __restrict__ y, int n, float sign, float factor) {
    __shared__ float scratch[2][32];
    const T* const row = x + blockIdx.x * (i64)n;
    T* const out = y + blockIdx.x * (i64)n;
    Running seen;
    for (int start = threadIdx.x * WIDTH; start < n; start += UNROLL * GROUP * WIDTH) {
        Elements held[UNROLL];
        float m = seen.m;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * GROUP * WIDTH < n) held[u] = load<WIDTH>(row + start + u * GROUP * WIDTH);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * GROUP * WIDTH < n)
                for (const T& t : held[u].v) m = fmaxf(m, sign * to_float(t));
        seen.rescale(m, factor);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * GROUP * WIDTH < n)
                for (const T& t : held[u].v) seen.add(sign * to_float(t), factor);
    }
    seen.rescale(group_reduce<GROUP>(seen.m, scratch[0], Max()), factor);
    const float m = seen.m, inverse = 1.0f / group_reduce<GROUP>(seen.sum, scratch[1], Sum());
#pragma unroll UNROLL
    for (int i = threadIdx.x * WIDTH; i < n; i += GROUP * WIDTH) {
        const Elements held = load_streaming<WIDTH>(row + i);
        float p[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) p[j] = fast_exp2((sign * to_float(held.v[j]) - m) * factor) * inverse;
        store_streaming(out + i, from_floats<T>(p));
    }
}

extern "C" __global__ void __launch_bounds__(GROUP)
softmax_columns(const T* __restrict__ x, T* __restrict__ y, int n, i64 inner, i64 tiles, float sign, float factor) {
    constexpr int TILE_N = GROUP / TILE_INNER;
    __shared__ Running partial[TILE_N][TILE_INNER * WIDTH];
    const i64 c = (blockIdx.x % tiles * TILE_INNER + threadIdx.x) * WIDTH;
    const i64 start = blockIdx.x / tiles * n * inner + c;
    Running seen[WIDTH];
    for (int first = threadIdx.y; first < n && c < inner; first += UNROLL * TILE_N) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (first + u * TILE_N < n) held[u] = load<WIDTH>(x + start + (first + u * TILE_N) * inner);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            float m = seen[j].m;
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (first + u * TILE_N < n) m = fmaxf(m, sign * to_float(held[u].v[j]));
            seen[j].rescale(m, factor);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (first + u * TILE_N < n) seen[j].add(sign * to_float(held[u].v[j]), factor);
        }
    }
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) partial[threadIdx.y][threadIdx.x * WIDTH + j] = seen[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        Running all;
        for (int k = 0; k < TILE_N; ++k) all.m = fmaxf(all.m, partial[k][threadIdx.x * WIDTH + j].m);
        for (int k = 0; k < TILE_N; ++k) {
            Running one = partial[k][threadIdx.x * WIDTH + j];
            one.rescale(all.m, factor);
            all.sum += one.sum;
        }
        seen[j] = {all.m, 1.0f / all.sum};
    }
    if (c >= inner) return;
    // Backwards: the rows read last are still in L2.
    for (int first = (n - 1) / (UNROLL * TILE_N) * UNROLL * TILE_N + threadIdx.y; first >= 0; first -= UNROLL * TILE_N) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (first + u * TILE_N < n) held[u] = load_streaming<WIDTH>(x + start + (first + u * TILE_N) * inner);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (first + u * TILE_N >= n) continue;
            float p[WIDTH];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                p[j] = fast_exp2((sign * to_float(held[u].v[j]) - seen[j].m) * factor) * seen[j].sum;
            store_streaming(y + start + (first + u * TILE_N) * inner, from_floats<T>(p));
        }
    }
}
