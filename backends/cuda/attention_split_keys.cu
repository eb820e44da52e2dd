// attention for few queries, which is as fast as keys and values can be read: the rows of all heads that share them are
// packed into tiles (row = query * group + head), mostly one, and the keys are split over blocks. A block's warps share
// its rows (ROW_WARPS) and the keys of a tile (KEY_WARPS), each with a softmax of its own. attention_merge joins the
// splits.
#include "attention_packed.cuh"

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
    const WarpPlace place;
    const unsigned queries = place.queries(q_tile);
    for (int tile = 0; tile < tiles; tile++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // this tile has arrived for all, and all have finished with the stage about to be filled
        load_stage(tile + STAGES - 1);
        const int key = start + tile * BLOCK_N + place.from;
        const unsigned stage = ring + tile % STAGES * stage_bytes + place.from * PITCH;
        add_keys(o, rows, queries, stage, scale_log2, [&](float (&s)[WARP_KEYS / 8][4]) {
            if (key + WARP_KEYS <= visible_keys(0, M, N) && (!WINDOW || key >= first_visible_key(M - 1, M, N, window)))
                return;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int query = packed.query(place.row + 8 * r);
                mask_row(s, r, key + 2 * (threadIdx.x & 3), first_visible_key(query, M, N, window),
                         visible_keys(query, M, N));
            }
        });
    }
    if (KEY_WARPS > 1) {
        copy_async_wait<0>();
        __syncthreads();
        join_warps(reinterpret_cast<float*>(shared), o[0], rows, place.row_warp, place.key_warp, scale_log2);
        if (place.key_warp > 0) return;
    }
    store_rows(out, lse, parts, logs, packed, o[0], rows, place.row, split, splits, scale_log2);
}
