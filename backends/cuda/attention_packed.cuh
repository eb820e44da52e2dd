// Attention of few queries: the rows of all heads that share keys packed into a tile, warps that share its rows and the
// keys of a tile between them, and the second kernel that joins the splits of the keys.
#pragma once
#define THREADS (32 * ROW_WARPS * KEY_WARPS)
#define BLOCK_M (16 * ROW_WARPS)
#include "attention_tiles.cuh"

#define WARP_KEYS (BLOCK_N / KEY_WARPS)

// Where a packed row of a block's tile is in tensors of [batch head M ...].
struct Packed {
    int batch, kv_head, first_row, kv_heads, group, M;

    __device__ __forceinline__ bool inside(int row) const { return first_row + row < M * group; }
    __device__ __forceinline__ int query(int row) const { return (first_row + row) / group; }
    __device__ __forceinline__ int head(int row) const { return kv_head * group + (first_row + row) % group; }
    __device__ __forceinline__ i64 index(int row) const {
        return ((i64)batch * kv_heads * group + head(row)) * M + query(row);
    }
};

__device__ __forceinline__ void load_queries(unsigned tile, const Element* q, const Packed& packed, i64 q_head,
                                             i64 q_row) {
    for (int i = threadIdx.x; i < BLOCK_M * 2 * STEPS; i += THREADS) {
        const int row = i / (2 * STEPS), chunk = i % (2 * STEPS);
        const bool inside = packed.inside(row) && chunk < CHUNKS;
        const Element* source = q + packed.head(row) * q_head + packed.query(row) * q_row + chunk * 8;
        load_chunk(chunk_address(tile, row, chunk), inside ? source : q, inside);
    }
}

// Joins what the KEY_WARPS warps of the same rows have, in order, into those of the first.
__device__ __forceinline__ void join_warps(float* scratch, float (&o)[OUT_TILES][4], RowPair& rows, int row_warp,
                                           int key_warp, float scale) {
    const int lane = threadIdx.x % 32;
    float* maxima = scratch + row_warp * 16 + lane / 4;
    float* sums = scratch + KEY_WARPS * BLOCK_M + (row_warp * 32 + lane) * 2;
    float* outputs = scratch + KEY_WARPS * (BLOCK_M + ROW_WARPS * 64) + row_warp * 32 + lane;
    if (lane % 4 == 0)
        for (int r = 0; r < 2; r++) maxima[key_warp * BLOCK_M + 8 * r] = rows.maximum[r];
    __syncthreads();
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float highest = -infinity();
        for (int w = 0; w < KEY_WARPS; w++) highest = fmaxf(highest, maxima[w * BLOCK_M + 8 * r]);
        factor[r] = fast_exp2(__fmul_rn(rows.maximum[r], scale) - __fmul_rn(finite_offset(highest), scale));
        rows.maximum[r] = highest, rows.sum[r] *= factor[r];
    }
    scale_rows(o, factor);
    if (key_warp > 0) {
        for (int r = 0; r < 2; r++) sums[key_warp * ROW_WARPS * 64 + r] = rows.sum[r];
#pragma unroll
        for (int i = 0; i < 4 * OUT_TILES; i++)
            outputs[((key_warp - 1) * 4 * OUT_TILES + i) * ROW_WARPS * 32] = o[i / 4][i % 4];
    }
    __syncthreads();
    if (key_warp > 0) return;
    for (int w = 1; w < KEY_WARPS; w++) {
        for (int r = 0; r < 2; r++) rows.sum[r] += sums[w * ROW_WARPS * 64 + r];
#pragma unroll
        for (int i = 0; i < 4 * OUT_TILES; i++)
            o[i / 4][i % 4] += outputs[((w - 1) * 4 * OUT_TILES + i) * ROW_WARPS * 32];
    }
}

// A split's rows, in fp32 and divided by their sums, and the logarithm of each sum, for powers of two.
__device__ __forceinline__ void store_part(float* parts, float* logs, i64 part, const float (&o)[OUT_TILES][4], int r,
                                           float largest_log2, float sum) {
    const int lane = threadIdx.x % 4;
    const float inverse = inverse_or_zero(sum);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++)
        *reinterpret_cast<float2*>(parts + part * HEAD_DIM + 8 * i + 2 * lane) =
            make_float2(o[i][2 * r] * inverse, o[i][2 * r + 1] * inverse);
    if (lane == 0) logs[part] = sum == 0.0f ? -infinity() : largest_log2 + __log2f(sum);
}

// A warp's place: its rows of the tile, and its keys of each tile of keys.
struct WarpPlace {
    int row_warp = threadIdx.x / 32 % ROW_WARPS, key_warp = threadIdx.x / 32 / ROW_WARPS;
    int row = 16 * row_warp + threadIdx.x % 32 / 4, from = key_warp * WARP_KEYS;

    __device__ __forceinline__ unsigned queries(unsigned tile) const {
        return chunk_address(tile, 16 * row_warp + (threadIdx.x & 15), threadIdx.x % 32 >> 4);
    }
};

// Adds what one tile of keys, in `stage` with its values behind it, gives to the warp's rows. mask(s) hides scores.
template <class Mask>
__device__ __forceinline__ void add_keys(float (&o)[1][OUT_TILES][4], RowPair& rows, unsigned queries, unsigned stage,
                                         float scale_log2, Mask mask) {
    float s[1][WARP_KEYS / 8][4] = {};
    compute_scores(s, queries, stage);
    mask(s[0]);
    float decay[2];
    rows.update(s[0], scale_log2, decay);
    if (__any_sync(0xffffffffu, decay[0] != 1.0f || decay[1] != 1.0f)) scale_rows(o[0], decay);
    add_values(o, s, stage + BLOCK_N * PITCH);
}

// Writes a warp's rows, or their parts if there are more splits. lost: they are not numbers.
__device__ __forceinline__ void store_rows(Element* out, float* lse, float* parts, float* logs, const Packed& packed,
                                           const float (&o)[OUT_TILES][4], RowPair& rows, int row, int split,
                                           int splits, float scale_log2, bool lost = false) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float whole = rows.whole_sum(r), sum = lost ? __int_as_float(0x7fffffff) : whole;
        const float largest_log2 = __fmul_rn(rows.maximum[r], scale_log2);
        const bool stored = packed.inside(row + 8 * r);
        const i64 index = packed.index(row + 8 * r);
        if (splits > 1) {
            if (stored) store_part(parts, logs, index * splits + split, o, r, largest_log2, sum);
        } else {
            store_row(out + index * HEAD_DIM, stored, o, r, inverse_or_zero(sum));
            if (stored && threadIdx.x % 4 == 0) lse[index] = log_of_sum(largest_log2, sum);
        }
    }
}

// A warp joins the splits of a row, in order: each weighs as much as the sum that it was divided by.
extern "C" __global__ void __launch_bounds__(128)
    attention_merge(Element* __restrict__ out, float* __restrict__ lse, const float* __restrict__ parts,
                    const float* __restrict__ logs, i64 rows, int splits) {
    const i64 row = blockIdx.x * 4ll + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    parts += row * splits * HEAD_DIM, logs += row * splits;
    float top = -infinity(), total = 0.0f;
    for (int split = lane; split < splits; split += 32) top = fmaxf(top, logs[split]);
    top = finite_offset(warp_reduce(top, Max()));
    for (int split = lane; split < splits; split += 32) total += fast_exp2(logs[split] - top);
    total = warp_reduce(total, Sum());
    const float inverse = inverse_or_zero(total);
    for (int column = 4 * lane; column < HEAD_DIM; column += 128) {
        float sum[4] = {};
#pragma unroll 8
        for (int split = 0; split < splits; split++) {
            const float weight = fast_exp2(logs[split] - top);
            const Vec<float, 4> part = load<4>(parts + split * HEAD_DIM + column);
            for (int j = 0; j < 4; j++) sum[j] += weight * part.v[j];
        }
        for (int j = 0; j < 4; j++) sum[j] *= inverse;
        store(out + row * HEAD_DIM + column, from_floats<Element>(sum));
    }
    if (lane == 0) lse[row] = log_of_sum(top, total);
}
