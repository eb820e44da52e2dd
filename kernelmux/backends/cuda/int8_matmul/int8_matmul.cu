// int8_matmul through mma.sync (sm_75): c = a b in int32, or scale_a * (a b) * scale_b in bf16. Operands lie in any way.
#include "byte_tiles.cuh"
#include "int8_products.cuh"

__device__ __forceinline__ void multiply(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else  // in quarters, of 8 rows and 16 of K
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+r"(d[i % 2 * 2]), "+r"(d[i % 2 * 2 + 1])
                     : "r"(a[i]), "r"(i < 2 ? b0 : b1));
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
    int8_matmul_tensor_cores(const Byte* __restrict__ a, const Byte* __restrict__ b, const float* __restrict__ scale_a,
                             const float* __restrict__ scale_b, Output* __restrict__ c, int M, int N, int K, i64 a_m,
                             i64 a_k, i64 b_k, i64 b_n) {
    const Tile tile = grouped_tile(blockIdx.x, cdiv(M, ROWS), cdiv(N, COLUMNS));
    int sum[GROUPS][4][4] = {};
    for_each_step({a, a_m, a_k, M}, {b, b_n, b_k, N}, tile, K, [&](const Byte* left, const Byte* right, int) {
        multiply_tile(sum, left, right, multiply);
    });
    for_each_row(tile, [&](int row, int i, int half) {
        if (row >= M) return;
        const float left = scale_of(scale_a, row * SCALES_A);
        for_each_column(tile, [&](int column, int j, int q) {
            if (column >= N) return;
            const float right = scale_of(scale_b, column * SCALES_B);
            c[(i64)row * N + column] = ended<Output>(sum[i][j][2 * half + q], left, right);
        });
    });
}
