// paged_attention: as attention_split_keys for one query, with each key where the page table says. A block knows the length
// of its sequence when it starts, and shares it out evenly: splits of a short sequence are short.
#include "attention_packed.cuh"

#ifndef SLOTS
#define SLOTS 16  // keys of a page
#endif

// Where pages lie, and how far keys and values are from the start of one.
struct Pages {
    const int* table;
    int count;
    i64 k_page, k_row, v_page, v_row;
};

// Side by side, LANES threads load a key and its value, in ROWS steps a tile.
constexpr int LANES = CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : 32, ROW_STEP = THREADS / LANES, ROWS = BLOCK_N / ROW_STEP;

// The pages of the keys that this thread will load of [first, first + BLOCK_N); 0 for those at or past `limit`.
__device__ __forceinline__ void find_pages(int (&found)[ROWS], const Pages& pages, int first, int limit) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int key = first + threadIdx.x / LANES + i * ROW_STEP;
        found[i] = key < limit ? pages.table[key / SLOTS] : 0;
    }
}

// Keys [first, first + BLOCK_N) and their values to shared memory; those at or past `limit` become zeros. True if one of
// them lies in a page that there is not.
__device__ __forceinline__ bool load_pages(unsigned tile, const Element* k, const Element* v, const Pages& pages,
                                           const int (&found)[ROWS], int first, int limit) {
    const int chunk = threadIdx.x % LANES;
    if (2 * STEPS < LANES && chunk >= 2 * STEPS) return false;
    bool lost = false;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = threadIdx.x / LANES + i * ROW_STEP, key = first + row, slot = key % SLOTS, page = found[i];
        const bool known = page >= 0 && page < pages.count, inside = key < limit && known && chunk < CHUNKS;
        lost |= !known;
        const Element* key_source = k + page * pages.k_page + slot * pages.k_row + chunk * 8;
        const Element* value_source = v + page * pages.v_page + slot * pages.v_row + chunk * 8;
        load_chunk(chunk_address(tile, row, chunk), inside ? key_source : k, inside);
        load_chunk(chunk_address(tile + BLOCK_N * PITCH, row, chunk), inside ? value_source : v, inside);
    }
    return lost;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    paged_attention(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                    const int* __restrict__ table, const int* __restrict__ lengths, Element* __restrict__ out,
                    float* __restrict__ lse, float* __restrict__ parts, float* __restrict__ logs, int kv_heads, int group,
                    int page_count, int most, int row_tiles, int splits, i64 table_row, i64 q_batch, i64 q_head, i64 k_page,
                    i64 k_head, i64 k_row, i64 v_page, i64 v_head, i64 v_row, float scale_log2) {
    extern __shared__ __align__(256) unsigned char shared[];
    const unsigned q_tile = shared_address(shared), ring = q_tile + BLOCK_M * PITCH, stage_bytes = 2 * BLOCK_N * PITCH;
    const int piece = blockIdx.x / row_tiles, split = piece % splits, slice = piece / splits;
    const int first_row = blockIdx.x % row_tiles * BLOCK_M;  // side by side, as they read the same keys
    const Packed packed = {slice / kv_heads, slice % kv_heads, first_row, kv_heads, group, 1};
    const Pages pages = {table + packed.batch * table_row, page_count, k_page, k_row, v_page, v_row};
    const Element* keys = k + packed.kv_head * k_head;
    const Element* values = v + packed.kv_head * v_head;
    const int told = lengths[packed.batch];
    bool lost = told < 0 || told > most;  // the table would be read behind its end
    const int length = lost ? 0 : told, share = cdiv(cdiv(length, BLOCK_N), splits) * BLOCK_N;
    const int start = min(length, split * share), end = min(length, start + share);
    const int tiles = cdiv(end - start, BLOCK_N);
    int found[ROWS];
    find_pages(found, pages, start, end);

    auto load_stage = [&](int tile) {  // the group is committed even when empty, so that counting groups counts tiles
        const int first = start + tile * BLOCK_N;
        if (tile < tiles) {
            lost |= load_pages(ring + tile % STAGES * stage_bytes, keys, values, pages, found, first, end);
            find_pages(found, pages, first + BLOCK_N, end);  // now, so that the next loads need not wait for the table
        }
        copy_async_commit();
    };
    load_queries(q_tile, q + packed.batch * q_batch, packed, q_head, 0);
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
        if (key + WARP_KEYS > end)
#pragma unroll
            for (int r = 0; r < 2; r++) mask_row(s[0], r, key + 2 * (lane & 3), 0, end);
        float decay[2];
        rows.update(s[0], scale_log2, decay);
        if (__any_sync(0xffffffffu, decay[0] != 1.0f || decay[1] != 1.0f)) scale_rows(o[0], decay);
        add_values(o, s, stage + BLOCK_N * PITCH);
    }
    copy_async_wait<0>();
    lost = __syncthreads_or(lost);
    if (KEY_WARPS > 1) {
        join_warps(reinterpret_cast<float*>(shared), o[0], rows, row_warp, key_warp, scale_log2);
        if (key_warp > 0) return;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = lost ? __int_as_float(0x7fffffff) : rows.whole_sum(r);
        const float largest_log2 = __fmul_rn(rows.maximum[r], scale_log2);
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
