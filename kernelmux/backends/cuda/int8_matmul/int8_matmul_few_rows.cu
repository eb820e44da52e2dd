// int8_matmul with few rows of a: c = a b in int32, or scale_a * (a b) * scale_b in bf16.
#include "int8_products.cuh"

#define NUMBER int
#define IN_REGISTERS "+r"
#define TYPES ".s32.s8.s8"
#define FLAGS ""
#include "few_rows.cuh"

__device__ __forceinline__ void accumulate(Sums& sum, FewRows& tile) {
    for (int i = tile.begin; i < tile.end; i++) {
        tile.multiply_stage(sum, i > tile.begin);
        wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < ROWS / 2; j++) asm volatile("" : "+r"(sum[j / 4][j % 4])::"memory");
        tile.release();
    }
}

extern "C" __global__ void __cluster_dims__(SPLITS, 1, 1) __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    int8_matmul_few_rows(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                         const float* __restrict__ scale_a, const float* __restrict__ scale_b, Output* __restrict__ c,
                         int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    FewRows tile(shared, K);
    Sums sum = {};
    if (tile.consumes()) {
        // The scales are there before the sums are.
        const int m = min((int)threadIdx.x, M - 1), n = min(tile.column + (int)threadIdx.x, N - 1);
        if (threadIdx.x < COLUMNS) tile.of_columns[threadIdx.x] = scale_of(scale_b, n * SCALES_B);
        if (threadIdx.x < ROWS) tile.of_rows[threadIdx.x] = scale_of(scale_a, m * SCALES_A);
        accumulate(sum, tile);
    } else {
        tile.produce(a, b);
    }
    tile.for_each_four(sum, M, [&](int m, int n, const int(&whole)[4]) {
        Output x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = ended<Output>(whole[i], tile.of_rows[m], tile.of_columns[n + i]);
        store_four(c, m, tile.column + n, N, x);
    });
}
