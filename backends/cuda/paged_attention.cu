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
    const WarpPlace place;
    const unsigned queries = place.queries(q_tile);
    for (int tile = 0; tile < tiles; tile++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // this tile has arrived for all, and all have finished with the stage about to be filled
        load_stage(tile + STAGES - 1);
        const int key = start + tile * BLOCK_N + place.from;
        const unsigned stage = ring + tile % STAGES * stage_bytes + place.from * PITCH;
        add_keys(o, rows, queries, stage, scale_log2, [&](float (&s)[WARP_KEYS / 8][4]) {
            if (key + WARP_KEYS <= end) return;
#pragma unroll
            for (int r = 0; r < 2; r++) mask_row(s, r, key + 2 * (threadIdx.x & 3), 0, end);
        });
    }
    copy_async_wait<0>();
    lost = __syncthreads_or(lost);
    if (KEY_WARPS > 1) {
        join_warps(reinterpret_cast<float*>(shared), o[0], rows, place.row_warp, place.key_warp, scale_log2);
        if (place.key_warp > 0) return;
    }
    store_rows(out, lse, parts, logs, packed, o[0], rows, place.row, split, splits, scale_log2, lost);
}
