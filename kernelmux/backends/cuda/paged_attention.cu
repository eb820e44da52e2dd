// paged_attention: as attention_split_keys for one query, with each key where the page table says, and the same number of
// keys for every block, whatever the lengths of the sequences are.
#include "attention_packed.cuh"
#include "attention_shares.cuh"
#include "dependent_launch.cuh"

#ifndef SLOTS
#define SLOTS 16  // keys of a page
#endif

static_assert(4 * JOINED <= 2 * BLOCK_N * PITCH, "warps join what they have where a stage was");

// How many pages there are, and how far keys and values are from the start of one.
struct Pages {
    int count;
    i64 k_page, k_row, v_page, v_row;
};

// Side by side, LANES threads load a key and its value, in ROWS steps a tile.
constexpr int LANES = CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : 32, ROW_STEP = THREADS / LANES, ROWS = BLOCK_N / ROW_STEP;

// The pages of the keys of a tile, on their way long before the tile is: a ring in shared memory with room for those of
// tiles that are still being read.
constexpr int TABLES = 2 * STAGES;

__device__ __forceinline__ void find_pages(unsigned ring, int tile, const int* table, int first, int limit) {
    for (int i = threadIdx.x; i < BLOCK_N; i += THREADS) {
        const bool inside = first + i < limit;
        copy_async<4>(ring + (tile % TABLES * BLOCK_N + i) * 4, table + (inside ? (first + i) / SLOTS : 0), inside);
    }
}

// Keys [first, first + BLOCK_N) and their values to shared memory; those at or past `limit` become zeros. True if one of
// them lies in a page that there is not.
__device__ __forceinline__ bool load_pages(unsigned tile, const Element* k, const Element* v, const Pages& pages,
                                           unsigned found, int first, int limit) {
    const int chunk = threadIdx.x % LANES;
    if (2 * STEPS < LANES && chunk >= 2 * STEPS) return false;
    bool lost = false;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = threadIdx.x / LANES + i * ROW_STEP, key = first + row, slot = key % SLOTS;
        const int page = load_word(found + 4 * row);
        const bool known = page >= 0 && page < pages.count, inside = key < limit && known && chunk < CHUNKS;
        lost |= !known;
        const Element* key_source = k + page * pages.k_page + slot * pages.k_row + chunk * 8;
        const Element* value_source = v + page * pages.v_page + slot * pages.v_row + chunk * 8;
        load_chunk(chunk_address(tile, row, chunk), inside ? key_source : k, inside);
        load_chunk(chunk_address(tile + BLOCK_N * PITCH, row, chunk), inside ? value_source : v, inside);
    }
    return lost;
}

// A block has parts of two tiles of rows at most: of the one that an earlier block has begun, and of the one that it
// begins and a later block ends.
__device__ __forceinline__ i64 part_of(i64 block, bool begun) { return 2 * block + begun; }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    paged_attention(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                    const int* __restrict__ table, const int* __restrict__ lengths, Element* __restrict__ out,
                    float* __restrict__ lse, float* __restrict__ parts, float* __restrict__ logs,
                    int2* __restrict__ spans, int batches, int kv_heads, int group, int page_count, int most,
                    int row_tiles, i64 table_row, i64 q_batch, i64 q_head, i64 k_page, i64 k_head, i64 k_row, i64 v_page,
                    i64 v_head, i64 v_row, float scale_log2) {
    extern __shared__ __align__(256) unsigned char shared[];
    let_next_start();
    follow_previous();
    const unsigned q_tiles = shared_address(shared), ring = q_tiles + STAGES * BLOCK_M * PITCH;
    const unsigned tables = ring + STAGES * 2 * BLOCK_N * PITCH;
    const Sequences sequences = {lengths, batches, kv_heads, most};
    const int first_row = blockIdx.x % row_tiles * BLOCK_M;  // side by side, as they read the same keys
    const Pages pages = {page_count, k_page, k_row, v_page, v_row};
    const Line line = divide(sequences, gridDim.x / row_tiles);
    const Index number = blockIdx.x / row_tiles, begin = number * line.share;
    const int count = min(line.share, line.tiles - begin);
    if (count <= 0) return;
    auto packed = [&](const Walk& at) { return Packed{at.batch, at.kv_head, first_row, kv_heads, group, 1}; };
    auto q_tile = [&](const Walk& at) { return q_tiles + at.piece % STAGES * BLOCK_M * PITCH; };

    Walk finding = walk_from(begin, sequences), loading = finding, adding = finding;
    int first_tile = adding.tile;
    unsigned lost = 0;  // a bit for each piece under way
    auto find = [&](int tile) {
        if (tile >= count) return;
        find_pages(tables, tile, table + finding.batch * table_row, finding.tile * BLOCK_N, finding.keys);
        finding.step(sequences);
    };
    for (int tile = 0; tile < STAGES - 1; tile++) find(tile);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    auto load = [&](unsigned stage, int tile) {
        if (tile == 0 || loading.tile == 0)
            load_queries(q_tile(loading), q + loading.batch * q_batch, packed(loading), q_head, 0);
        const Element* keys = k + loading.kv_head * k_head;
        const Element* values = v + loading.kv_head * v_head;
        const unsigned found = tables + tile % TABLES * BLOCK_N * 4;
        const bool missed = load_pages(stage, keys, values, pages, found, loading.tile * BLOCK_N, loading.keys);
        lost |= (unsigned)missed << loading.piece % 32;
        loading.step(sequences);
        find(tile + STAGES - 1);  // arrives with this tile, and is used as soon as that is added
    };
    float o[1][OUT_TILES][4] = {};
    RowPair rows;
    const WarpPlace place;
    auto add = [&](unsigned stage, int tile) {
        const int key = adding.tile * BLOCK_N + place.from;
        add_keys(o, rows, place, q_tile(adding), stage, scale_log2, [&](float (&s)[WARP_KEYS / 8][4]) {
            if (key + WARP_KEYS <= adding.keys) return;
#pragma unroll
            for (int r = 0; r < 2; r++) mask_row(s, r, key + 2 * (threadIdx.x & 3), 0, adding.keys);
        });
        const bool ended = adding.tile + 1 == adding.tiles, begun = first_tile == 0;
        if (ended || tile + 1 == count) {
            const bool missed = __syncthreads_or(lost >> adding.piece % 32 & 1) || sequences.impossible(adding.batch);
            join_warps(reinterpret_cast<float*>(shared + (stage - q_tiles)), o[0], rows, place, scale_log2);
            if (missed) rows.sum[0] = rows.sum[1] = __int_as_float(0x7fffffff);
            if (place.key_warp == 0 && begun && ended)
                store_rows(out, lse, packed(adding), o[0], rows, place.row, scale_log2);
            else if (place.key_warp == 0)
                store_parts(parts, logs, packed(adding), o[0], rows, place.row, scale_log2,
                            [&](int row) { return part_of(blockIdx.x, begun) * BLOCK_M + row; });
            if (begun && first_row == 0 && threadIdx.x == 0)
                spans[adding.batch * kv_heads + adding.kv_head] = {
                    (int)number, (int)((begin + tile - adding.tile + adding.tiles - 1) / line.share)};
            lost &= ~(1u << adding.piece % 32);
            rows = RowPair();
#pragma unroll
            for (int i = 0; i < OUT_TILES; i++)
                for (int j = 0; j < 4; j++) o[0][i][j] = 0.0f;
            first_tile = 0;
        }
        adding.step(sequences);
    };
    walk_tiles(ring, count, load, add);
}

// A block joins the pieces of a row, if there are more than one.
extern "C" __global__ void __launch_bounds__(32 * JOINERS)
    paged_attention_join(Element* __restrict__ out, float* __restrict__ lse, const float* __restrict__ parts,
                         const float* __restrict__ logs, const int2* __restrict__ spans, int group, int row_tiles) {
    wait_for_previous();
    follow_previous();
    const i64 row = blockIdx.x;
    const int2 span = spans[row / group];
    const int packed = row % group;
    if (span.x == span.y) return;
    join_parts(out, lse, parts, logs, row, span.y - span.x + 1, [&](int i) {
        return part_of((span.x + i) * row_tiles + packed / BLOCK_M, i == 0) * BLOCK_M + packed % BLOCK_M;
    });
}
