// What the attention kernels share: which rows a block owns, what they see, the online softmax of accumulator fragments.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT __nv_bfloat16
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef BLOCK_M
#define BLOCK_M 64
#endif
#ifndef BLOCK_N
#define BLOCK_N 32
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif

#define NEGATIVE_INFINITY (-__int_as_float(0x7f800000))

using Element = ELEMENT;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ __forceinline__ void round_to(float& y, float x) { y = x; }
__device__ __forceinline__ void round_to(__half& y, float x) { y = __float2half_rn(x); }
__device__ __forceinline__ void round_to(__nv_bfloat16& y, float x) { y = __float2bfloat16_rn(x); }

__device__ __forceinline__ unsigned pack(float low, float high, __half) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ unsigned pack(float low, float high, __nv_bfloat16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
}

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// exp2f() adds four instructions for subnormal results, which vanish in the sums here.
__device__ __forceinline__ float exp2_approximate(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Four adjacent lanes share a row.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// One past the last key that any of the query rows [first, first + rows) sees.
__device__ __forceinline__ int visible_keys(int first, int rows, int M, int N) {
    return CAUSAL ? min(first + rows, M) + N - M : N;
}

// What a block of a one-dimensional grid works on: BLOCK_M rows of one (batch, head) slice, and how many keys they see.
struct Place {
    int slice, batch, head, kv_head, first_row, keys;
};

__device__ __forceinline__ Place locate(int heads, int group, int M, int N) {
    const int row_tiles = (M + BLOCK_M - 1) / BLOCK_M, slice = blockIdx.x / row_tiles, index = blockIdx.x % row_tiles;
    // Causal: the last rows see the most keys. Started first, they leave the short tiles to fill the tail of the grid.
    const int first_row = (CAUSAL ? row_tiles - 1 - index : index) * BLOCK_M;
    const int head = slice % heads;
    return {slice, slice / heads, head, head / group, first_row, visible_keys(first_row, BLOCK_M, M, N)};
}

// What to subtract from scores: a row without a finite score so far gets 0, since -inf - -inf would be NaN.
__device__ __forceinline__ float finite_offset(float highest) { return highest == NEGATIVE_INFINITY ? 0.0f : highest; }

// The online softmax of the two rows (g and g + 8) that a lane shares in a 16-row accumulator fragment. maximum is of raw
// scores, over all keys so far; sum is this lane's part, combined once at the end.
struct RowPair {
    float maximum[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY};
    float sum[2] = {0.0f, 0.0f};

    // Turns raw scores into exp2(scale * (score - maximum)); `decay` is what everything summed so far shrinks by.
    template <int TILES>
    __device__ __forceinline__ void update(float (&s)[TILES][4], float scale, float (&decay)[2]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float highest = maximum[r];
#pragma unroll
            for (int i = 0; i < TILES; i++) highest = fmaxf(highest, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
            highest = quad_max(highest);
            const float offset = finite_offset(highest) * scale;
            decay[r] = exp2_approximate(maximum[r] * scale - offset);
            maximum[r] = highest;
            sum[r] *= decay[r];
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                s[i][2 * r] = exp2_approximate(s[i][2 * r] * scale - offset);
                s[i][2 * r + 1] = exp2_approximate(s[i][2 * r + 1] * scale - offset);
                sum[r] += s[i][2 * r] + s[i][2 * r + 1];
            }
        }
    }

    __device__ __forceinline__ float inverse_sum(int r) const { return 1.0f / quad_sum(sum[r]); }
};

// Removes the keys that row (upper half) and row + 8 (lower half) must not see: -inf is exp2's exact 0. `key` is the
// lane's first of the tile; its others follow 1 and multiples of 8 later.
template <int TILES>
__device__ __forceinline__ void mask_scores(float (&s)[TILES][4], int key, int row, int M, int N) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int left = visible_keys(row + 8 * r, 1, M, N) - key;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            if (8 * i >= left) s[i][2 * r] = NEGATIVE_INFINITY;
            if (8 * i + 1 >= left) s[i][2 * r + 1] = NEGATIVE_INFINITY;
        }
    }
}

template <int TILES>
__device__ __forceinline__ void scale_rows(float (&o)[TILES][4], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) o[i][j] *= factor[j / 2];
}
