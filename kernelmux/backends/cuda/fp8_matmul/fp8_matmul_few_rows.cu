// fp8_matmul with few rows of a: c = (scale_a * a) (scale_b * b). Sums go on in fp32 after each 128 of K.
#include "fp8_products.cuh"

#define NUMBER float
#define IN_REGISTERS "+f"
#define TYPES ".f32." STRING(B_FORMAT) "." STRING(A_FORMAT)
#define FLAGS ", 1, 1"
#include "few_rows.cuh"

__device__ __forceinline__ void accumulate(Sums& sum, FewRows& tile, const Scales& scales) {
    const int row = threadIdx.x % 4 * 2;
    for (int i = tile.begin; i < tile.end; i++) {
        // The scales of blocks are asked for before the stage is awaited.
        const float right = SCALES_B == BLOCKS ? scales.of_column(tile.column, i) : 1.0f;
        float left[ROWS / 8][2];
#pragma unroll
        for (int j = 0; j < ROWS / 4; j++)
            left[j / 2][j % 2] = SCALES_A == BLOCKS ? scales.of_row(row + j / 2 * 8 + j % 2, i) : 1.0f;
        Sums part;
        tile.multiply_stage(part, false);
        wgmma_wait<0>(part);
        tile.release();
#pragma unroll
        for (int j = 0; j < ROWS / 2; j++) sum[j / 4][j % 4] += Factor(left[j / 4][j % 2], right)(part[j / 4][j % 4]);
    }
}

extern "C" __global__ void __cluster_dims__(SPLITS, 1, 1) __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    fp8_matmul_few_rows(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                        const float* __restrict__ scale_a, const float* __restrict__ scale_b, Output* __restrict__ c, int M,
                        int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    FewRows tile(shared, K);
    const Scales scales(scale_a, scale_b, M, N, K);
    Sums sum = {};
    if (tile.consumes()) {
        // The scales of whole sums are there before these are.
        if (threadIdx.x < COLUMNS) tile.of_columns[threadIdx.x] = scales.of_column(tile.column + threadIdx.x);
        if (threadIdx.x < ROWS) tile.of_rows[threadIdx.x] = scales.of_row(threadIdx.x);
        accumulate(sum, tile, scales);
    } else {
        tile.produce(a, b);
    }
    tile.for_each_four(sum, M, [&](int m, int n, const float(&whole)[4]) {
        Output x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = from_float<Output>(Factor(tile.of_rows[m], tile.of_columns[n + i])(whole[i]));
        store_four(c, m, tile.column + n, N, x);
    });
}
