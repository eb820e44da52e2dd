// Attention of few queries: the rows of all heads that share keys packed into a tile, warps that share its rows and the
// keys of a tile between them, and what joins a row whose keys were split.
#pragma once
#define THREADS (32 * ROW_WARPS * KEY_WARPS)
#define BLOCK_M (16 * ROW_WARPS)
#include "attention_tiles.cuh"

#define WARP_KEYS (BLOCK_N / KEY_WARPS)
#define JOINERS 4  // warps that join the parts of a row

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

// A warp's place: its rows of the tile, and its keys of each tile of keys.
struct WarpPlace {
    int row_warp = threadIdx.x / 32 % ROW_WARPS, key_warp = threadIdx.x / 32 / ROW_WARPS;
    int row = 16 * row_warp + threadIdx.x % 32 / 4, from = key_warp * WARP_KEYS;

    __device__ __forceinline__ unsigned queries(unsigned tile) const {
        return chunk_address(tile, 16 * row_warp + (threadIdx.x & 15), threadIdx.x % 32 >> 4);
    }
};

// Floats that join_warps writes; a constant of the namespace would be a variable of the kernel.
#define JOINED (KEY_WARPS == 1 ? 0 : ROW_WARPS * (80 * KEY_WARPS + 128 * OUT_TILES * (KEY_WARPS - 1)))

// Joins what the KEY_WARPS warps of the same rows have, in order, into those of the first; `scratch` has room for JOINED.
__device__ __forceinline__ void join_warps(float* scratch, float (&o)[OUT_TILES][4], RowPair& rows,
                                           const WarpPlace& place, float scale) {
    if constexpr (KEY_WARPS == 1) return;
    const int lane = threadIdx.x % 32, row_warp = place.row_warp, key_warp = place.key_warp;
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

// Adds what one tile of keys, in `stage` with its values behind it, gives to the warp's rows. mask(s) hides scores.
template <class Mask>
__device__ __forceinline__ void add_keys(float (&o)[1][OUT_TILES][4], RowPair& rows, const WarpPlace& place,
                                         unsigned q_tile, unsigned stage, float scale_log2, Mask mask) {
    float s[1][WARP_KEYS / 8][4] = {};
    stage += place.from * PITCH;
    compute_scores(s, place.queries(q_tile), stage);
    mask(s[0]);
    float decay[2];
    rows.update(s[0], scale_log2, decay);
    if (__any_sync(0xffffffffu, decay[0] != 1.0f || decay[1] != 1.0f)) scale_rows(o[0], decay);
    add_values(o, s, stage + BLOCK_N * PITCH);
}

// Walks over tiles of keys that come through a ring of STAGES. load(stage, tile) starts to bring one with its values,
// add(stage, tile) uses it; its stage stays as it is until the next tile is waited for.
template <class Load, class Add>
__device__ __forceinline__ void walk_tiles(unsigned ring, int tiles, Load load, Add add) {
    const unsigned stage_bytes = 2 * BLOCK_N * PITCH;
    auto load_stage = [&](int tile) {  // the group is committed even when empty, so that counting groups counts tiles
        if (tile < tiles) load(ring + tile % STAGES * stage_bytes, tile);
        copy_async_commit();
    };
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) load_stage(tile);
    for (int tile = 0; tile < tiles; tile++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // this tile has arrived for all, and all have finished with the stage about to be filled
        load_stage(tile + STAGES - 1);
        add(ring + tile % STAGES * stage_bytes, tile);
    }
}

// A warp's rows, which are whole.
__device__ __forceinline__ void store_rows(Element* out, float* lse, const Packed& packed,
                                           const float (&o)[OUT_TILES][4], const RowPair& rows, int row,
                                           float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = rows.whole_sum(r);
        const bool stored = packed.inside(row + 8 * r);
        const i64 index = packed.index(row + 8 * r);
        store_row(out + index * HEAD_DIM, stored, o, r, inverse_or_zero(sum));
        if (stored && threadIdx.x % 4 == 0) lse[index] = log_of_sum(__fmul_rn(rows.maximum[r], scale_log2), sum);
    }
}

// A warp's rows as parts, in fp32 and divided by their sums, with the logarithm of each sum, for powers of two;
// part(row) is the number of the part that a row of the tile goes to.
template <class Part>
__device__ __forceinline__ void store_parts(float* parts, float* logs, const Packed& packed,
                                            const float (&o)[OUT_TILES][4], const RowPair& rows, int row,
                                            float scale_log2, Part part) {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = rows.whole_sum(r), inverse = inverse_or_zero(sum);
        if (!packed.inside(row + 8 * r)) continue;
        const i64 index = part(row + 8 * r);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++)
            *reinterpret_cast<float2*>(parts + index * HEAD_DIM + 8 * i + 2 * lane) =
                make_float2(o[i][2 * r] * inverse, o[i][2 * r + 1] * inverse);
        const float largest_log2 = __fmul_rn(rows.maximum[r], scale_log2);
        if (lane == 0) logs[index] = sum == 0.0f ? -infinity() : largest_log2 + __log2f(sum);
    }
}

// Joins the parts of a row, each weighed by the sum that it was divided by: a block's work, whose warps take parts in
// turn, as to read them one after another is what takes the time. part(i) is the number of the i-th part.
template <class Part>
__device__ __forceinline__ void join_parts(Element* out, float* lse, const float* parts, const float* logs, i64 row,
                                           int count, Part part) {
    __shared__ __align__(16) float sums[JOINERS][HEAD_DIM];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float top = -infinity(), total = 0.0f;
    for (int i = lane; i < count; i += 32) top = fmaxf(top, logs[part(i)]);
    top = finite_offset(warp_reduce(top, Max()));
    for (int i = lane; i < count; i += 32) total += fast_exp2(logs[part(i)] - top);
    total = warp_reduce(total, Sum());
    for (int column = 4 * lane; column < HEAD_DIM; column += 128) {
        Vec<float, 4> sum = {};
#pragma unroll 8
        for (int i = warp; i < count; i += JOINERS) {
            const float weight = fast_exp2(logs[part(i)] - top);
            const Vec<float, 4> x = load<4>(parts + part(i) * HEAD_DIM + column);
            for (int j = 0; j < 4; j++) sum.v[j] += weight * x.v[j];
        }
        store(&sums[warp][column], sum);
    }
    __syncthreads();
    if (threadIdx.x == 0) lse[row] = log_of_sum(top, total);
    const int column = 4 * threadIdx.x;
    if (column >= HEAD_DIM) return;
    float sum[4] = {};
#pragma unroll
    for (int w = 0; w < JOINERS; w++)
        for (int j = 0; j < 4; j++) sum[j] += sums[w][column + j];
    for (int j = 0; j < 4; j++) sum[j] *= inverse_or_zero(total);
    store(out + row * HEAD_DIM + column, from_floats<Element>(sum));
}
