// Sums in fp32, rounded once to OUTPUT; every order is fixed by the launch, so results repeat bit for bit.
//   rows     x: [rows, n] -> y: [rows, splits]; GROUP threads sum a chunk of a row
//   columns  x: [outer, n, inner] -> y: [splits, outer, inner]; a thread owns WIDTH columns and walks down a chunk
// With several splits OUTPUT is float and a second launch sums the splits.
#include "rows.cuh"

#ifndef OUTPUT
#define OUTPUT float
#endif
#ifndef TILE_INNER  // columns: threads side by side; GROUP / TILE_INNER of them share a column
#define TILE_INNER 32
#endif

using Out = OUTPUT;
using u32 = unsigned int;

__device__ __forceinline__ void accumulate(float (&sum)[WIDTH], const Elements& x) {
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) sum[j] = add_gradual(sum[j], to_float(x.v[j]));
}

extern "C" __global__ void __launch_bounds__(GROUP * ROWS, MIN_BLOCKS)
reduce_sum_rows(const T* __restrict__ x, Out* __restrict__ y, i64 rows, i64 n, i64 chunk, u32 splits) {
    __shared__ float scratch[32];
    const i64 row = blockIdx.x / splits * (i64)ROWS + threadIdx.y, split = blockIdx.x % splits;
    const i64 begin = split * chunk, end = min(n, begin + chunk);
    const T* const p = x + row * n + begin;
    const int count = row < rows ? (int)(end - begin) : 0;
    float sum[WIDTH] = {};
    for (int start = threadIdx.x * WIDTH; start < count; start += UNROLL * GROUP * WIDTH) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * GROUP * WIDTH + WIDTH <= count) held[u] = load_streaming<WIDTH>(p + start + u * GROUP * WIDTH);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * GROUP * WIDTH + WIDTH <= count) accumulate(sum, held[u]);
    }
    if (threadIdx.x < count % WIDTH) sum[0] = add_gradual(sum[0], to_float(p[count - count % WIDTH + threadIdx.x]));
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2)
        for (int j = 0; j < step; ++j) sum[j] = add_gradual(sum[j], sum[j + step]);
    const float total = group_reduce<GROUP>(sum[0], scratch, GradualSum());
    if (threadIdx.x == 0 && row < rows) y[row * splits + split] = from_float<Out>(total);
}

constexpr int TILE_N = GROUP / TILE_INNER, COLUMNS = TILE_INNER * WIDTH;
using Partial = float[TILE_N][COLUMNS];

// The sums of this block's columns over `count` rows from p, one partial sum per row of threads.
__device__ __forceinline__ void sum_down(Partial& partial, const T* p, int count, i64 inner, bool inside) {
    float sum[WIDTH] = {};
    for (int start = threadIdx.y; start < count && inside; start += UNROLL * TILE_N) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * TILE_N < count) held[u] = load_streaming<WIDTH>(p + (start + u * TILE_N) * inner);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * TILE_N < count) accumulate(sum, held[u]);
    }
    constexpr int Part = WIDTH < 4 ? WIDTH : 4;  // floats per store
#pragma unroll
    for (int j = 0; j < WIDTH; j += Part) {  // neighbours in one store: no bank conflicts
        Vec<float, Part> part;
#pragma unroll
        for (int k = 0; k < Part; ++k) part.v[k] = sum[j + k];
        store(&partial[threadIdx.y][threadIdx.x * WIDTH + j], part);
    }
    __syncthreads();
}

// After sum_down: the sum of column i of the block, in runs of 16 so that no chain of additions gets long.
__device__ __forceinline__ float column_sum(const Partial& partial, int i) {
    constexpr int RUN = TILE_N < 16 ? TILE_N : 16;
    float sum = 0.0f;
#pragma unroll
    for (int first = 0; first < TILE_N; first += RUN) {
        float run = 0.0f;
#pragma unroll
        for (int k = 0; k < RUN; ++k) run = add_gradual(run, partial[first + k][i]);
        sum = add_gradual(sum, run);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(GROUP, MIN_BLOCKS)
reduce_sum_columns(const T* __restrict__ x, Out* __restrict__ y, i64 n, i64 inner, i64 chunk, u32 outer, u32 tiles) {
    __shared__ alignas(16) Partial partial;
    const i64 tile = (i64)(blockIdx.x % tiles) * COLUMNS, c = tile + threadIdx.x * WIDTH, o = blockIdx.x / tiles % outer;
    const i64 split = blockIdx.x / tiles / outer, begin = split * chunk;
    sum_down(partial, x + (o * n + begin) * inner + c, (int)(min(n, begin + chunk) - begin), inner, c < inner);
    Out* const out = y + (split * outer + o) * inner + tile;
    for (int i = threadIdx.y * TILE_INNER + threadIdx.x; i < COLUMNS && tile + i < inner; i += GROUP)
        out[i] = from_float<Out>(column_sum(partial, i));
}
