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
constexpr int STRIP_N = 64, STRIP_BYTES = SCALED ? 8 * Strip<STRIP_N>::Bytes : 0;  // of all consumer warps

// Sum i of group j of a lane is at row lane / 4 + i / 2 * 8 and column 8 j + lane % 4 * 2 + i % 2.
__device__ __forceinline__ void store_integers(const Sums& sum, int* c, int row, int column, int M, int N) {
    const int lane = threadIdx.x % 32, n0 = column + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int m = row + lane / 4 + 8 * half;
        if (m >= M) continue;
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++) {
            const int n = n0 + 8 * j, left = sum[j][2 * half], right = sum[j][2 * half + 1];
            int* to = c + (i64)m * N + n;
            if (N % 2 == 0 && n < N) {
                *reinterpret_cast<int2*>(to) = {left, right};
            } else {
                if (n < N) to[0] = left;
                if (n + 1 < N) to[1] = right;
            }
        }
    }
}

// The same, scaled; strips of shared memory make whole lines of the 16-bit results.
template <typename Out>
__device__ __forceinline__ void store_scaled(const Sums& sum, Out* strip, Out* c, const float* scale_a, const float* scale_b,
                                             int row, int column, int M, int N) {
    const int lane = threadIdx.x % 32, m = row + lane / 4, n0 = column + lane % 4 * 2;
    const float left[2] = {m < M ? scale_of(scale_a, m * SCALES_A) : 0.0f, m + 8 < M ? scale_of(scale_a, (m + 8) * SCALES_A) : 0.0f};
#pragma unroll
    for (int first = 0; first < BLOCK_N; first += STRIP_N) {
        float scaled[STRIP_N / 8][4];
#pragma unroll
        for (int j = 0; j < STRIP_N / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int n = n0 + first + 8 * j + i;
                const float right = n < N ? scale_of(scale_b, n * SCALES_B) : 0.0f;
#pragma unroll
                for (int half = 0; half < 2; half++)
                    scaled[j][2 * half + i] = (float)sum[first / 8 + j][2 * half + i] * left[half] * right;
            }
        Strip<STRIP_N>::store_out(strip, scaled, c, Epilogue<Out>{}, row, column + first, M, N);
    }
}

__device__ __forceinline__ void end(const Sums& sum, int*, int* c, const float*, const float*, int row, int column, int M, int N) {
    store_integers(sum, c, row, column, M, N);
}
template <typename Out>
__device__ __forceinline__ void end(const Sums& sum, Out* strip, Out* c, const float* scale_a, const float* scale_b, int row,
                                    int column, int M, int N) {
    store_scaled(sum, strip, c, scale_a, scale_b, row, column, M, N);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    int8_matmul_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                      const float* __restrict__ scale_a, const float* __restrict__ scale_b, Output* __restrict__ c, int M,
                      int N, int K) {
    extern __shared__ __align__(1024) unsigned char stages[];  // then a strip per consumer warp, then the barriers
    unsigned char* strips = stages + STAGES * STAGE_BYTES;
    Ring ring(stages, reinterpret_cast<Barrier*>(strips + STRIP_BYTES));
    Sums sum = {};
    for_each_tile(ring, a, b, M, N, K, [&](int row, int column) {
        accumulate(sum, ring, K, [](Sums& d, Descriptor x, Descriptor y, bool add) { multiply(d, x, y, add); });
        end(sum, reinterpret_cast<Output*>(strips) + (threadIdx.x / 32 - 4) * STRIP_BYTES / (8 * (int)sizeof(Output)), c,
            scale_a, scale_b, row, column, M, N);
    });
}
