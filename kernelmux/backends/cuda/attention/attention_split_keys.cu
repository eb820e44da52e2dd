// attention for few queries, which is as fast as keys and values can be read: the rows of all heads that share them are
// packed into tiles (row = query * group + head), mostly one, and the keys are split over blocks. A block's warps share
// its rows (ROW_WARPS) and the keys of a tile (KEY_WARPS), each with a softmax of its own. attention_merge joins the
// splits.
#include "attention_merge.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_split_keys(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                         Element* __restrict__ out, float* __restrict__ lse, float* __restrict__ parts,
                         float* __restrict__ logs, int kv_heads, int group, int M, int N, int shift, int window,
                         int row_tiles, int splits, int length, i64 q_batch, i64 q_head, i64 q_row, i64 k_batch,
                         i64 k_head, i64 k_row, i64 v_batch, i64 v_head, i64 v_row, float scale_log2) {
    extern __shared__ __align__(256) unsigned char shared[];
    let_next_start();
    const unsigned q_tile = shared_address(shared);
    const int piece = blockIdx.x / row_tiles, split = piece % splits, slice = piece / splits;
    const int first_row = blockIdx.x % row_tiles * BLOCK_M;  // side by side, as they read the same keys
    const Packed packed = {slice / kv_heads, slice % kv_heads, first_row, kv_heads, group, M};
    const Element* keys = k + packed.batch * k_batch + packed.kv_head * k_head;
    const Element* values = v + packed.batch * v_batch + packed.kv_head * v_head;
    const int start = first_visible_key(0, shift, window) + split * length;
    load_queries(q_tile, q + packed.batch * q_batch, packed, q_head, q_row);

    auto load = [&](unsigned stage, int tile) {
        load_tile<BLOCK_N>(stage, keys, k_row, start + tile * BLOCK_N, N);
        load_tile<BLOCK_N>(stage + BLOCK_N * PITCH, values, v_row, start + tile * BLOCK_N, N);
    };
    float o[1][OUT_TILES][4] = {};
    RowPair rows;
    const WarpPlace place;
    auto add = [&](unsigned stage, int tile) {
        const int key = start + tile * BLOCK_N + place.from;
        add_keys(o, rows, place, q_tile, stage, scale_log2, [&](float (&s)[WARP_KEYS / 8][4]) {
            const bool before_end = key + WARP_KEYS <= visible_keys(0, shift, N);
            if (before_end && (!WINDOW || key >= first_visible_key(M - 1, shift, window))) return;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int query = packed.query(place.row + 8 * r);
                mask_row(s, r, key + 2 * (threadIdx.x & 3), first_visible_key(query, shift, window),
                         visible_keys(query, shift, N));
            }
        });
    };
    walk_tiles(q_tile + BLOCK_M * PITCH, cdiv(min(length, N - start), BLOCK_N), load, add);
    copy_async_wait<0>();
    __syncthreads();  // shared memory may be written again
    join_warps(reinterpret_cast<float*>(shared), o[0], rows, place, scale_log2);
    if (place.key_warp > 0) return;
    if (splits == 1) store_rows(out, lse, packed, o[0], rows, place.row, scale_log2);
    else store_parts(parts, logs, packed, o[0], rows, place.row, scale_log2,
                     [&](int row) { return packed.index(row) * splits + split; });
}
