// What the attention kernels share: the rows of a block, the keys they see, the online softmax of fragments.
#pragma once
#include "attention_elements.cuh"

#ifndef BLOCK_M
#define BLOCK_M 64
#endif
#ifndef BLOCK_N
#define BLOCK_N 32
#endif
#ifndef SLACK
#define SLACK 0  // powers of two by which scores may outgrow the maximum that weights refer to
#endif
#ifndef WINDOW
#define WINDOW 0  // whether a query sees only the last `window` keys up to key `row + shift`
#endif

template <typename Half = Element>
__device__ __forceinline__ unsigned pack(float low, float high) {
    return pair_from_floats<Half>(low, high);
}

// One past the last key that a query row sees; under a causal mask that is key `row + shift`.
__device__ __forceinline__ int visible_keys(int row, int shift, int N) { return CAUSAL ? min(N, row + 1 + shift) : N; }

// The first key that a query row sees.
__device__ __forceinline__ int first_visible_key(int row, int shift, int window) {
    return WINDOW ? max(0, row + 1 + shift - window) : 0;
}

// The shape of a call; a slice is one (batch, head), and `group` heads of q share one of k and v.
struct Shape {
    int slices, section, heads, group, M, N, shift, window;
};

// What one turn of work is: BLOCK_M rows of one slice, which see keys of [first_key, keys).
struct Place {
    int slice, batch, head, kv_head, first_row, keys, first_key;
};

// Work number `index`. Slices come in sections whose keys and values fit into L2 together; within one, causal work goes
// from the last rows, which see the most keys, to the first, so that short pieces fill the gaps at the end.
__device__ __forceinline__ Place locate(int index, const Shape& shape) {
    const int row_tiles = cdiv(shape.M, BLOCK_M), per_section = shape.section * row_tiles;
    const int first = index / per_section * shape.section, within = index % per_section;
    const int together = min(shape.section, shape.slices - first), tile = within / together;
    const int slice = first + within % together, head = slice % shape.heads;
    const int first_row = (CAUSAL ? row_tiles - 1 - tile : tile) * BLOCK_M;
    const int last_row = min(first_row + BLOCK_M, shape.M) - 1;
    const int keys = visible_keys(last_row, shape.shift, shape.N);
    const int first_key = first_visible_key(first_row, shape.shift, shape.window);
    return {slice, slice / shape.heads, head, head / shape.group, first_row, keys, first_key};
}

// What to subtract from scores: a row without a finite score so far gets 0, since -inf - -inf would be NaN.
__device__ __forceinline__ float finite_offset(float highest) { return highest == -infinity() ? 0.0f : highest; }

// What to scale a row with: one that sees no key has a sum of 0 and stays 0.
__device__ __forceinline__ float inverse_or_zero(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

// log(sum(exp(x))), from the largest x and the sum, both for powers of two; -inf for a row that sees no key.
__device__ __forceinline__ float log_of_sum(float largest_log2, float sum) {
    return sum == 0.0f ? -infinity() : (largest_log2 + __log2f(sum)) * 0.69314718055994531f;
}

// The online softmax of the two rows (g and g + 8) that a lane shares in a 16-row accumulator fragment. `maximum` is of
// raw scores, over all keys so far or less by at most SLACK; `sum` is this lane's part, combined once at the end.
struct RowPair {
    float maximum[2] = {-infinity(), -infinity()};
    float sum[2] = {0.0f, 0.0f};

    // Turns raw scores into exp2(scale * (score - maximum)); `decay` is what everything summed so far shrinks by.
    template <int TILES>
    __device__ __forceinline__ void update(float (&s)[TILES][4], float scale, float (&decay)[2]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float highest = maximum[r];
#pragma unroll
            for (int i = 0; i < TILES; i++) highest = fmaxf(highest, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
            highest = warp_reduce<4>(highest, Max());
            // Then weights reach 2^SLACK, which costs no bit of them, and what was summed up need not shrink.
            if (SLACK && __fmul_rn(highest - maximum[r], scale) <= SLACK) highest = maximum[r];
            const float offset = __fmul_rn(finite_offset(highest), scale);
            // Rounded alike, so that an unchanged maximum decays by exactly 1: a fused multiply-add would leave the
            // rounding error of the offset, and its exponential once per tile.
            decay[r] = fast_exp2(__fmul_rn(maximum[r], scale) - offset);
            maximum[r] = highest;
            sum[r] *= decay[r];
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                s[i][2 * r] = fast_exp2(s[i][2 * r] * scale - offset);
                s[i][2 * r + 1] = fast_exp2(s[i][2 * r + 1] * scale - offset);
                sum[r] += s[i][2 * r] + s[i][2 * r + 1];
            }
        }
    }

    __device__ __forceinline__ float whole_sum(int r) const { return warp_reduce<4>(sum[r], Sum()); }

    __device__ __forceinline__ float inverse_sum(int r) const { return inverse_or_zero(whole_sum(r)); }
};

// Removes the keys outside [low, high) from row r of a pair: -inf is exp2's exact 0. `key` is the lane's first of the
// tile; its others follow 1 and multiples of 8 later.
template <int TILES>
__device__ __forceinline__ void mask_row(float (&s)[TILES][4], int r, int key, int low, int high) {
    const int hidden = low - key, left = high - key;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        if (8 * i >= left || (WINDOW && 8 * i < hidden)) s[i][2 * r] = -infinity();
        if (8 * i + 1 >= left || (WINDOW && 8 * i + 1 < hidden)) s[i][2 * r + 1] = -infinity();
    }
}

// The same for what row (upper half) and row + 8 (lower half) must not see.
template <int TILES>
__device__ __forceinline__ void mask_scores(float (&s)[TILES][4], int key, int row, int shift, int N, int window) {
#pragma unroll
    for (int r = 0; r < 2; r++)
        mask_row(s, r, key, first_visible_key(row + 8 * r, shift, window), visible_keys(row + 8 * r, shift, N));
}

// Whether some of the rows [row, row + 16) does not see all of the keys [key, key + BLOCK_N).
__device__ __forceinline__ bool needs_mask(int key, int row, int shift, int N, int window) {
    return key + BLOCK_N > visible_keys(row, shift, N) || (WINDOW && key < first_visible_key(row + 15, shift, window));
}

template <int TILES>
__device__ __forceinline__ void scale_rows(float (&o)[TILES][4], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) o[i][j] *= factor[j / 2];
}

// Probabilities as the left operand of the next product, rounded to Element: an m16k16 fragment per 16 keys.
template <int TILES>
__device__ __forceinline__ void pack_rows(unsigned (&p)[TILES / 2][4], const float (&s)[TILES][4]) {
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) p[i / 4][i % 4] = pack(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
}

// out[row..row + 16) = o / sum, rows at or past M left out.
template <int TILES>
__device__ __forceinline__ void store_rows(Element* out, const float (&o)[TILES][4], const RowPair& rows, int row,
                                           int M) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int target = row + threadIdx.x % 32 / 4 + 8 * r;
        store_row(out + (i64)target * HEAD_DIM, target < M, o, r, rows.inverse_sum(r));
    }
}

// lse[row..row + 16), rows at or past M left out.
__device__ __forceinline__ void store_logs(float* lse, const RowPair& rows, int row, int M, float scale_log2) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = rows.whole_sum(r);
        const int target = row + lane / 4 + 8 * r;
        if (lane % 4 == 0 && target < M) lse[target] = log_of_sum(__fmul_rn(rows.maximum[r], scale_log2), sum);
    }
}
