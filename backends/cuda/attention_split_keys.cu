// attention for few queries, which is as fast as keys and values can be read: the rows of all heads that share them are
// packed into tiles (row = query * group + head), mostly one, and the keys are split over blocks. A block's warps share
// its rows (ROW_WARPS) and the keys of a tile (KEY_WARPS), each with a softmax of its own. attention_merge joins the
// splits.
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

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_split_keys(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                         Element* __restrict__ out, float* __restrict__ lse, float* __restrict__ parts,
                         float* __restrict__ logs, int kv_heads, int group, int M, int N, int window, int row_tiles,
                         int splits, int length, i64 q_batch, i64 q_head, i64 q_row, i64 k_batch, i64 k_head, i64 k_row,
                         i64 v_batch, i64 v_head, i64 v_row, float scale_log2) {
    extern __shared__ __align__(256) unsigned char shared[];
    const unsigned q_tile = shared_address(shared), ring = q_tile + BLOCK_M * PITCH, stage_bytes = 2 * BLOCK_N * PITCH;
    const int piece = blockIdx.x / row_tiles, split = piece % splits, slice = piece / splits;
    const int first_row = blockIdx.x % row_tiles * BLOCK_M;  // side by side, as they read the same keys
    const Packed packed = {slice / kv_heads, slice % kv_heads, first_row, kv_heads, group, M};
    const Element* keys = k + packed.batch * k_batch + packed.kv_head * k_head;
    const Element* values = v + packed.batch * v_batch + packed.kv_head * v_head;
    const int start = first_visible_key(0, M, N, window) + split * length;
    const int tiles = cdiv(min(length, N - start), BLOCK_N);

    auto load_stage = [&](int tile) {  // the group is committed even when empty, so that counting groups counts tiles
        if (tile < tiles) {
            const unsigned stage = ring + tile % STAGES * stage_bytes;
            load_tile<BLOCK_N>(stage, keys, k_row, start + tile * BLOCK_N, N);
            load_tile<BLOCK_N>(stage + BLOCK_N * PITCH, values, v_row, start + tile * BLOCK_N, N);
        }
        copy_async_commit();
    };
    load_queries(q_tile, q + packed.batch * q_batch, packed, q_head, q_row);
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) load_stage(tile);

    float o[1][OUT_TILES][4] = {};
    RowPair rows;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int row_warp = warp % ROW_WARPS, key_warp = warp / ROW_WARPS;
    const int row = 16 * row_warp + lane / 4, from = key_warp * WARP_KEYS;
    const unsigned q_place = chunk_address(q_tile, 16 * row_warp + (lane & 15), lane >> 4);
    for (int tile = 0; tile < tiles; tile++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // this tile has arrived for all, and all have finished with the stage about to be filled
        load_stage(tile + STAGES - 1);
        const unsigned stage = ring + tile % STAGES * stage_bytes + from * PITCH;
        const int key = start + tile * BLOCK_N + from;
        float s[1][WARP_KEYS / 8][4] = {};
        compute_scores(s, q_place, stage);
        if (key + WARP_KEYS > visible_keys(0, M, N) || (WINDOW && key < first_visible_key(M - 1, M, N, window)))
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int query = packed.query(row + 8 * r);
                mask_row(s[0], r, key + 2 * (lane & 3), first_visible_key(query, M, N, window),
                         visible_keys(query, M, N));
            }
        float decay[2];
        rows.update(s[0], scale_log2, decay);
        if (__any_sync(0xffffffffu, decay[0] != 1.0f || decay[1] != 1.0f)) scale_rows(o[0], decay);
        add_values(o, s, stage + BLOCK_N * PITCH);
    }
    if (KEY_WARPS > 1) {
        copy_async_wait<0>();
        __syncthreads();
        join_warps(reinterpret_cast<float*>(shared), o[0], rows, row_warp, key_warp, scale_log2);
        if (key_warp > 0) return;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = rows.whole_sum(r), largest_log2 = __fmul_rn(rows.maximum[r], scale_log2);
        const bool stored = packed.inside(row + 8 * r);
        const i64 index = packed.index(row + 8 * r);
        if (splits > 1) {
            if (stored) store_part(parts, logs, index * splits + split, o[0], r, largest_log2, sum);
        } else {
            store_row(out + index * HEAD_DIM, stored, o[0], r, inverse_or_zero(sum));
            if (stored && lane % 4 == 0) lse[index] = log_of_sum(largest_log2, sum);
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
