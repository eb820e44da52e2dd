// A few vectors by a weight: c[b, n] = scale[n] * sum over k of weight[n, k] * x[b, k], in fp32, or what an epilogue makes of the
// sum. weight: [N, K], x: [BATCH, K], c: [BATCH, N].
//
// A block owns ROWS rows and its warps share their columns, so that even few rows keep every multiprocessor reading. What
// is read of x serves all of the rows.
//
//   -DWEIGHT=type -DELEMENT=type   of weight, and of x and y
//   -DBATCH=n -DROWS=n -DWARPS=n   -DWIDTH=elements per access of the weight
//   -DSCALED=1                     there is a scale, or null
#include "common.cuh"
#include "dependent_launch.cuh"
#include "epilogue.cuh"

#ifdef SCALED
#define SCALE , const float* __restrict__ scale
#define TIMES_SCALE(sum, n) (scale ? (sum) * __ldg(scale + (n)) : (sum))
#else
#define SCALE
#define TIMES_SCALE(sum, n) (sum)
#endif

using T = ELEMENT;
using W = WEIGHT;

constexpr int SUMS = ROWS * BATCH;  // of a thread
__host__ __device__ constexpr int power_above(int n) { return n <= 1 ? 1 : 2 * power_above((n + 1) / 2); }
constexpr int WHOLE = power_above(SUMS);
constexpr int PIECE = sizeof(T) * WIDTH <= 16 ? WIDTH : 16 / (int)sizeof(T);  // elements per access of x

__device__ __forceinline__ float to_float(signed char x) { return x; }

// The numbers of a piece of a vector. Four bytes with 128 added to each stand as the last digits of 2^23 + byte, one permutation
// each: conversions of integers have an eighth of its rate.
template <int Count, typename Any, int Width>
__device__ __forceinline__ void piece_to_floats(float (&y)[Count], const Vec<Any, Width>& x, int from) {
#pragma unroll
    for (int i = 0; i < Count; ++i) y[i] = to_float(x.v[from + i]);
}
template <int Count, int Width>
__device__ __forceinline__ void piece_to_floats(float (&y)[Count], const Vec<signed char, Width>& x, int from) {
    if constexpr (Count % 4 == 0) {
        unsigned words[Count / 4];
        memcpy(words, x.v + from, Count);
#pragma unroll
        for (int i = 0; i < Count; ++i) {
            const unsigned digits = __byte_perm(words[i / 4] ^ 0x80808080u, 0x4b000000u, 0x7440 + i % 4);
            y[i] = __uint_as_float(digits) - (0x1p23f + 128.0f);
        }
    } else {
#pragma unroll
        for (int i = 0; i < Count; ++i) y[i] = to_float(x.v[from + i]);
    }
}

// Adds up Count sums over the lanes of a warp: each step hands half of them to the lane across. Lane l ends with Count / 32
// of them, those from l * Count / 32 on; of fewer than 32, sum i ends in lane 32 / Count * i.
template <int Count, int Step>
__device__ __forceinline__ void scatter_sums(float* x, int lane) {
    if constexpr (Step > 0) {
        constexpr int Half = Count > 1 ? Count / 2 : 1;
#pragma unroll
        for (int i = 0; i < Half; ++i) {
            const bool upper = lane & Step;
            const float other = Count > 1 ? x[i + Half] : x[i];
            const float sent = Count > 1 && !upper ? other : x[i], kept = Count > 1 && upper ? other : x[i];
            x[i] = add_gradual(kept, __shfl_xor_sync(0xffffffffu, sent, Step));
        }
        scatter_sums<Half, Step / 2>(x, lane);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) vectors(
    const T* __restrict__ x, const W* __restrict__ weight, T* __restrict__ c EPILOGUE_PARAMETERS(T) SCALE, int N, int K,
    i64 x_row, i64 weight_row) {
    constexpr int EACH = WHOLE > 32 ? WHOLE / 32 : 1;
    __shared__ float partial[WARPS][WHOLE > 32 ? WHOLE : 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 first = blockIdx.x * (i64)ROWS;
    follow_previous();
    float sums[WHOLE] = {};
    for (int k = threadIdx.x * WIDTH; k < K; k += 32 * WARPS * WIDTH) {
        Vec<W, WIDTH> held[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) held[r] = load_streaming<WIDTH>(weight + min(first + r, (i64)N - 1) * weight_row + k);
#pragma unroll
        for (int piece = 0; piece < WIDTH; piece += PIECE) {
            float numbers[ROWS][PIECE];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) piece_to_floats(numbers[r], held[r], piece);
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                float with[PIECE];
                to_floats(with, load_constant<PIECE>(x + b * x_row + k + piece));
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
#pragma unroll
                    for (int i = 0; i < PIECE; ++i)
                        sums[r * BATCH + b] = fma_gradual(numbers[r][i], with[i], sums[r * BATCH + b]);
            }
        }
    }
    scatter_sums<WHOLE, 16>(sums, lane);
#pragma unroll
    for (int i = 0; i < EACH; ++i) partial[warp][lane * EACH + i] = sums[i];
    __syncthreads();
    for (int i = threadIdx.x; i < SUMS; i += 32 * WARPS) {
        const int r = i / BATCH, b = i % BATCH;
        if (first + r >= N) continue;
        const int at = WHOLE >= 32 ? i : i * (32 / WHOLE);
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum = add_gradual(sum, partial[w][at]);
        const float values[1] = {TIMES_SCALE(sum, first + r)};
        EPILOGUE(T).store(c, (i64)b * N + first + r, first + r, values);
    }
}
