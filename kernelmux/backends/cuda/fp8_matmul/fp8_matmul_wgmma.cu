// fp8_matmul on Hopper's asynchronous tensor cores: c = (scale_a * a) (scale_b * b).
#include "fp8_products.cuh"

#define NUMBER float
#define IN_REGISTERS "+f"
#define TYPES ".f32." FORMATS
#define FLAGS ", 1, 1"
#include "byte_products.cuh"

constexpr int TURN = PROMOTES && BLOCK_N <= 128 ? 2 : 1;  // stages that a warpgroup multiplies before the other one does
constexpr int SCALE_BYTES = SCALES_B == LINES ? 4 * CONSUMERS * 4 * BLOCK_N : 0;
static_assert(!(HALVES && PROMOTES), "promoted sums are of all columns");
static_assert(BLOCK_K == SCALED_LENGTH && (SCALES_B != BLOCKS || SCALED_LENGTH % BLOCK_N == 0), "a tile is in a block");

// Every stage has a sum of its own, which is scaled and added in fp32 while the other warpgroup multiplies. That takes
// longer than a narrow tile keeps the tensor cores busy, so a warpgroup multiplies two stages at its turn.
__device__ __forceinline__ void accumulate_promoted(
    Sums<BLOCK_N>& sum, Ring& ring, const Scales& scales, int row, int column, int K) {
    const int m = row + threadIdx.x % 32 / 4;
    const Operands operands(ring);
    Sums<BLOCK_N> parts[TURN];
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) sum[i / 4][i % 4] = 0.0f;
    for (int k = 0; k < K; k += TURN * BLOCK_K) {
        int stages[TURN];
#pragma unroll
        for (int t = 0; t < TURN; t++) {
            ring.await();
            stages[t] = ring.place.stage;
            operands.multiply_stage(parts[t], stages[t], false);
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

// Whether a sum of products, which has a size of 2^-32 to 2^63, keeps a normal number when it is multiplied by this.
__device__ __forceinline__ bool moderate(float scale) { return fabsf(scale) >= 0x1p-62f && fabsf(scale) <= 0x1p62f; }

// What the sums of a lane's two rows are multiplied by before they leave.
struct Ends {
    const float* columns;  // scales of the tile's, in shared memory
    float left[2];
    Factor both[2];
    bool plain;  // the scales of rows may be applied first

    // m: the first of the two rows, the other one is 8 below.
    __device__ __forceinline__ Ends(const float* columns, const Scales& scales, int m, int column, int M)
        : columns(columns),
          left{scales.of_row(min(m, M - 1)), scales.of_row(min(m + 8, M - 1))},
          both{Factor(left[0], SCALES_B == LINES ? 1.0f : scales.of_column(column)),
               Factor(left[1], SCALES_B == LINES ? 1.0f : scales.of_column(column))} {
        plain = SCALES_B == LINES ? SCALES_A == BLOCKS || (moderate(left[0]) && moderate(left[1]))
                                  : both[0].second == 1.0f && both[1].second == 1.0f;
    }

    // Those of columns `first` of the tile and of those behind it; Plain: with the scales of rows first.
    template <bool Plain, int Groups>
    __device__ __forceinline__ void scale(float (&x)[Groups][4], int first) const {
#pragma unroll
        for (int j = 0; j < Groups; j++) {
            float right[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                right[i] = SCALES_B == LINES ? columns[first + 8 * j + threadIdx.x % 4 * 2 + i] : 1.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if constexpr (SCALES_B != LINES) x[j][i] = Plain ? x[j][i] * both[i / 2].first : both[i / 2](x[j][i]);
                else x[j][i] = Plain ? x[j][i] * left[i / 2] * right[i % 2] : Factor(left[i / 2], right[i % 2])(x[j][i]);
            }
        }
    }
};

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
    fp8_matmul_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                     const float* __restrict__ scale_a, const float* __restrict__ scale_b, RESULTS c, int M, int N,
                     int K, int whole) {
    extern __shared__ __align__(1024) unsigned char stages[];  // then strips and scales of consumer warps, then barriers
    unsigned char* strips = stages + STAGES * STAGE_BYTES;
    Ring ring(stages, reinterpret_cast<Barrier*>(strips + STRIP_BYTES + SCALE_BYTES));
    const Scales scales(scale_a, scale_b, M, N, K);
    Sums<BLOCK_N> sums = {};
    const int length = cdiv(K, TURN * BLOCK_K) * TURN * BLOCK_K;  // beyond K TMA reads zeros
    for_each_work(ring, a, b, M, N, length, whole, [&](int row, int column, auto some) {
        constexpr int Count = decltype(some)::count;
        const int warp = threadIdx.x / 32 - 4;
        Output* strip = reinterpret_cast<Output*>(strips) + warp * 16 * STRIP_PITCH;
        float* columns = reinterpret_cast<float*>(strips + STRIP_BYTES) + (SCALE_BYTES ? warp * BLOCK_N : 0);
        Sums<Count>& sum = first<Count>(sums);
        if constexpr (SCALES_B == LINES) fetch_scales<Count>(columns, scale_b, column, N);
        if constexpr (PROMOTES) accumulate_promoted(sum, ring, scales, row, column, length);
        else accumulate(sum, ring, length);
        const Ends ends(columns, scales, row + threadIdx.x % 32 / 4, column, M);
        if constexpr (SCALES_B == LINES) copy_async_wait<0>();
        __syncwarp();
        store_sums<float>(sum, strip, c, row, column, M, N, [&](auto& x, int first) {
            if (ends.plain) ends.scale<true>(x, first);
            else ends.scale<false>(x, first);
        });
    });
}
