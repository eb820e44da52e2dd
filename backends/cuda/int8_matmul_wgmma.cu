// int8_matmul on Hopper's asynchronous tensor cores: c = a b in int32, or scale_a * (a b) * scale_b in bf16.
#include "byte_products.cuh"
#include "int8_products.cuh"

#define FOUR_INTS(j) "+r"(d[j][0]), "+r"(d[j][1]), "+r"(d[j][2]), "+r"(d[j][3])
#define SIXTEEN_INTS(j) FOUR_INTS(j), FOUR_INTS(j + 1), FOUR_INTS(j + 2), FOUR_INTS(j + 3)
#define INTS_128 SIXTEEN_INTS(0), SIXTEEN_INTS(4), SIXTEEN_INTS(8), SIXTEEN_INTS(12)
#define INTS_192 INTS_128, SIXTEEN_INTS(16), SIXTEEN_INTS(20)
#define INTS_256 INTS_192, SIXTEEN_INTS(24), SIXTEEN_INTS(28)
#define INTEGER_PRODUCT(N, A, B, ADD)                                                                                \
    __device__ __forceinline__ void multiply(int(&d)[N / 8][4], Descriptor a, Descriptor b, bool add) {              \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N             \
                     "k32.s32.s8.s8 {" NAMES_##N "}, %" #A ", %" #B ", p; }"                                         \
                     : INTS_##N                                                                                      \
                     : "l"(a), "l"(b), "r"((int)add));                                                               \
    }
INTEGER_PRODUCT(128, 64, 65, 66)
INTEGER_PRODUCT(192, 96, 97, 98)
INTEGER_PRODUCT(256, 128, 129, 130)

using Sums = int[BLOCK_N / 8][4];

__device__ __forceinline__ void pin(Sums& d) {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) asm volatile("" : "+r"(d[i / 4][i % 4])::"memory");
}

// The products of one stage stay under way while the next one is awaited; a stage is given back one step late.
__device__ __forceinline__ void accumulate(Sums& sum, Ring& ring, int K) {
    int previous = -1;
    for (int k = 0; k < K; k += BLOCK_K) {
        ring.await();
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < BLOCK_K / 32; step++) multiply(sum, ring.a(step), ring.b(step), k > 0 || step > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (previous >= 0) ring.release(previous);
        previous = ring.place.stage;
        ring.place.advance();
    }
    wgmma_wait<0>();
    pin(sum);
    ring.release(previous);
}

// Sum i of group j of a lane is at row lane / 4 + i / 2 * 8 and column 8 j + lane % 4 * 2 + i % 2.
__device__ __forceinline__ void store_sums(
    const Sums& sum, Output* c, const float* scale_a, const float* scale_b, int row, int column, int M, int N) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int m = row + lane / 4 + 8 * half;
        if (m >= M) continue;
        const float left = scale_of(scale_a, m * SCALES_A);
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++) {
            const int n = column + 8 * j + lane % 4 * 2;
            Vec<Output, 2> pair;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float right = n + i < N ? scale_of(scale_b, (n + i) * SCALES_B) : 1.0f;
                pair.v[i] = ended<Output>(sum[j][2 * half + i], left, right);
            }
            if (N % 2 == 0 && n < N) store(c + (i64)m * N + n, pair);
            else
                for (int i = 0; i < 2; i++)
                    if (n + i < N) c[(i64)m * N + n + i] = pair.v[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    int8_matmul_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                      const float* __restrict__ scale_a, const float* __restrict__ scale_b, Output* __restrict__ c, int M,
                      int N, int K) {
    extern __shared__ __align__(1024) unsigned char stages[];  // then the barriers
    Ring ring(stages, reinterpret_cast<Barrier*>(stages + STAGES * STAGE_BYTES));
    Sums sum = {};
    for_each_tile(ring, a, b, M, N, K, [&](int row, int column) {
        accumulate(sum, ring, K);
        store_sums(sum, c, scale_a, scale_b, row, column, M, N);
    });
}
