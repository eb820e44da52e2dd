// fp8_matmul through mma.sync (sm_89): c = (scale_a * a) (scale_b * b). Operands lie in any way.
#include "byte_tiles.cuh"
#include "fp8_products.cuh"

using Sums = float[GROUPS][4][4];

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." FORMATS
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// sum += part, scaled; part starts anew. The columns of a tile share a scale.
__device__ __forceinline__ void promote(Sums& sum, Sums& part, const Scales& scales, Tile tile, int group) {
    static_assert(COLUMNS == SCALED_LENGTH, "a tile is a block of scales");
    for_each_row(tile, [&](int row, int i, int half) {
        const Factor scaled = scales.of_part(row, tile.n * COLUMNS, group);
        for_each_column(tile, [&](int, int j, int q) {
            float& x = part[i][j][2 * half + q];
            sum[i][j][2 * half + q] += scaled(x);
            x = 0.0f;
        });
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fp8_matmul_tensor_cores(const Byte* __restrict__ a, const Byte* __restrict__ b, const float* __restrict__ scale_a,
                            const float* __restrict__ scale_b, Output* __restrict__ c, int M, int N, int K, i64 a_m, i64 a_k,
                            i64 b_k, i64 b_n) {
    const Tile tile = grouped_tile(blockIdx.x, cdiv(M, ROWS), cdiv(N, COLUMNS));
    const Scales scales(scale_a, scale_b, M, N, K);
    Sums sum = {}, part = {};
    for_each_step({a, a_m, a_k, M}, {b, b_n, b_k, N}, tile, K, [&](const Byte* left, const Byte* right, int k) {
        const int next = k + BLOCK_K;
        multiply_tile(PROMOTES ? part : sum, left, right, multiply);
        if (PROMOTES && (next % SCALED_LENGTH == 0 || next >= K)) promote(sum, part, scales, tile, k / SCALED_LENGTH);
    });
    for_each_row(tile, [&](int row, int i, int half) {
        if (row >= M) return;
        const float left = scales.of_row(row);
        for_each_column(tile, [&](int column, int j, int q) {
            if (column < N)
                c[(i64)row * N + column] = from_float<Output>(Factor(left, scales.of_column(column))(sum[i][j][2 * half + q]));
        });
    });
}
