// fp8_matmul on Hopper's asynchronous tensor cores: c = (scale_a * a) (scale_b * b).
#include "byte_products.cuh"
#include "fp8_products.cuh"

// d (+)= a b, both K-major in shared memory, 32 of K; not `add` starts a new sum.
#define PRODUCT(N, A, B, ADD)                                                                                          \
    __device__ __forceinline__ void multiply(float(&d)[N / 8][4], Descriptor a, Descriptor b, bool add) {              \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N               \
                     "k32.f32." FORMATS " {" NAMES_##N "}, %" #A ", %" #B ", p, 1, 1; }"                               \
                     : SUMS_##N                                                                                        \
                     : "l"(a), "l"(b), "r"((int)add));                                                                 \
    }
PRODUCT(128, 64, 65, 66)
PRODUCT(192, 96, 97, 98)
PRODUCT(256, 128, 129, 130)

using Sums = float[BLOCK_N / 8][4];
constexpr int TURN = PROMOTES && BLOCK_N <= 128 ? 2 : 1;  // stages that a warpgroup multiplies before the other one does
constexpr int STRIP_N = 128 / sizeof(Output), STRIP_BYTES = 4 * CONSUMERS * Strip<STRIP_N>::Bytes;
constexpr int SCALE_BYTES = SCALES_B == LINES ? 4 * CONSUMERS * 4 * BLOCK_N : 0;
static_assert(BLOCK_K == SCALED_LENGTH && (SCALES_B != BLOCKS || BLOCK_N == SCALED_LENGTH), "a stage and a tile are a block");

struct Multiply {
    __device__ __forceinline__ void operator()(Sums& d, Descriptor a, Descriptor b, bool add) const { multiply(d, a, b, add); }
};

// Descriptors of the first 32 bytes of K of the first stage, of this warpgroup's rows and of all columns. They count units of 16
// bytes, so that of another stage or step is one sum away: the fewer instructions between the end of a stage's product and the
// start of the next, the less has the other warpgroup to fill.
struct Operands {
    Descriptor a, b;

    // The number of the warpgroup is taken from one lane, so that the compiler knows it to be that of all.
    __device__ __forceinline__ explicit Operands(const Ring& ring) {
        const int group = __shfl_sync(0xffffffff, threadIdx.x / 128 - 1, 0);
        a = matrix_descriptor(ring.stages + group * 64 * BLOCK_K, 0);
        b = matrix_descriptor(ring.stages + A_BYTES, 0);
    }

    // Starts a new sum over a stage.
    __device__ __forceinline__ void multiply_stage(Sums& part, int stage) const {
        const Descriptor at = stage * (STAGE_BYTES / 16);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < BLOCK_K / 32; step++) multiply(part, a + at + 2 * step, b + at + 2 * step, step > 0);
        wgmma_commit();
    }
};

// Every stage has a sum of its own, which is scaled and added in fp32 while the other warpgroup multiplies. That takes longer
// than a narrow tile keeps the tensor cores busy, so a warpgroup multiplies two stages at its turn.
__device__ __forceinline__ void accumulate_promoted(Sums& sum, Ring& ring, const Scales& scales, int row, int column, int K) {
    const int m = row + threadIdx.x % 32 / 4;
    const Operands operands(ring);
    Sums parts[TURN];
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) sum[i / 4][i % 4] = 0.0f;
    for (int k = 0; k < K; k += TURN * BLOCK_K) {
        int stages[TURN];
#pragma unroll
        for (int t = 0; t < TURN; t++) {
            ring.await();
            stages[t] = ring.place.stage;
            operands.multiply_stage(parts[t], stages[t]);
            ring.place.advance();
        }
#pragma unroll
        for (int t = 0; t < TURN; t++) {
            const int group = k / BLOCK_K + t;
            const Factor scaled[2] = {scales.of_part(m, column, group), scales.of_part(m + 8, column, group)};
            if (t + 1 < TURN) wgmma_wait<1>(parts[t]);
            else wgmma_wait<0>(parts[t]);
            ring.release(stages[t]);
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; i++) sum[i / 4][i % 4] += scaled[i % 4 / 2](parts[t][i / 4][i % 4]);
        }
    }
}

// Scales of the columns of a tile, that each warp copies while it multiplies: a load of each when the sums are there would
// keep the tensor cores waiting (H200, 8192^3: 54 us of 807).
__device__ __forceinline__ void fetch_scales(float* columns, const Scales& scales, int column, int N) {
    if constexpr (SCALES_B == LINES) {
        const unsigned to = shared_address(columns);
        __syncwarp();  // all lanes have read those of the last tile
#pragma unroll
        for (int i = threadIdx.x % 32; i < BLOCK_N; i += 32)
            copy_async<4>(to + 4 * i, scales.b + min(column + i, N - 1), column + i < N);
        copy_async_commit();
    }
}

// Whether the product of two such scales is a normal number.
__device__ __forceinline__ bool moderate(float scale) { return fabsf(scale) >= 0x1p-62f && fabsf(scale) <= 0x1p62f; }

// Strips of shared memory make whole lines of the results.
__device__ __forceinline__ void store_scaled(const Sums& sum, Output* strip, const float* columns, Output* c, const Scales& scales,
                                             int row, int column, int M, int N) {
    const int lane = threadIdx.x % 32, m = row + lane / 4;
    const float left[2] = {scales.of_row(m), scales.of_row(m + 8)};
    if constexpr (SCALES_B == LINES) copy_async_wait<0>();
    __syncwarp();
#pragma unroll
    for (int first = 0; first < BLOCK_N; first += STRIP_N) {
        float right[STRIP_N / 8][2], scaled[STRIP_N / 8][4];
        bool all_moderate = moderate(left[0]) && moderate(left[1]);
#pragma unroll
        for (int j = 0; j < STRIP_N / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int n = first + 8 * j + lane % 4 * 2 + i;
                right[j][i] = SCALES_B == LINES ? columns[n] : scales.of_column(column + n);
                all_moderate = all_moderate && moderate(right[j][i]);
            }
#pragma unroll
        for (int i = 0; i < STRIP_N / 2; i++) {
            const float a = left[i % 4 / 2], b = right[i / 4][i % 2];
            scaled[i / 4][i % 4] = sum[first / 8 + i / 4][i % 4] * (a * b);
        }
        if (!all_moderate)
#pragma unroll
            for (int i = 0; i < STRIP_N / 2; i++)
                scaled[i / 4][i % 4] = Factor(left[i % 4 / 2], right[i / 4][i % 2])(sum[first / 8 + i / 4][i % 4]);
        Strip<STRIP_N>::store_out(strip, scaled, c, Epilogue<Output>{}, row, column + first, M, N);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fp8_matmul_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                     const float* __restrict__ scale_a, const float* __restrict__ scale_b, Output* __restrict__ c, int M, int N,
                     int K) {
    extern __shared__ __align__(1024) unsigned char stages[];  // then of each consumer warp a strip and scales, then the barriers
    unsigned char* strips = stages + STAGES * STAGE_BYTES;
    Ring ring(stages, reinterpret_cast<Barrier*>(strips + STRIP_BYTES + SCALE_BYTES));
    const Scales scales(scale_a, scale_b, M, N, K);
    Sums sum = {};
    const int length = cdiv(K, TURN * BLOCK_K) * TURN * BLOCK_K;  // beyond K TMA reads zeros
    for_each_tile(ring, a, b, M, N, length, [&](int row, int column) {
        const int warp = threadIdx.x / 32 - 4;
        Output* strip = reinterpret_cast<Output*>(strips) + warp * (Strip<STRIP_N>::Bytes / (int)sizeof(Output));
        float* columns = reinterpret_cast<float*>(strips + STRIP_BYTES) + (SCALE_BYTES ? warp * BLOCK_N : 0);
        fetch_scales(columns, scales, column, N);
        if constexpr (PROMOTES) accumulate_promoted(sum, ring, scales, row, column, length);
        else accumulate(sum, ring, length, Multiply());
        store_scaled(sum, strip, columns, c, scales, row, column, M, N);
    });
}
