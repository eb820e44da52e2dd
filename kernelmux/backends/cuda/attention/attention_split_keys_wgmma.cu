// attention_split_keys for more rows than the tensor cores of mma.sync keep up with: warpgroup products, 64 rows of the
// packed tile for each warpgroup. One thread feeds keys and values into a ring of STAGES through TMA, so that each tile is
// read once for up to 128 rows; a warpgroup computes the scores of a tile while the values of the one before are added.
#include "attention_merge.cuh"
#include "attention_wgmma.cuh"

#define PANELS ((HEAD_DIM + 63) / 64)  // a TMA box of the 128-byte swizzle is 64 elements wide, zeros past HEAD_DIM
#define KEY_TILES (BLOCK_N / 8)

static_assert(KEY_WARPS == 1 && ROW_WARPS % 4 == 0, "whole warpgroups, each of which walks all keys of a tile");

// What has arrived (full) and what all warps have read (empty), stage by stage.
struct Ring {
    Barrier full[STAGES], empty[STAGES];

    __device__ __forceinline__ void init() {
        for (int stage = 0; stage < STAGES; stage++)
            barrier_init(full[stage], 1), barrier_init(empty[stage], ROW_WARPS);
    }
};

struct alignas(1024) Shared {
    Element q[PANELS][BLOCK_M][64];
    Element k[STAGES][PANELS][BLOCK_N][64];
    Element v[STAGES][PANELS][BLOCK_N][64];
    Ring keys, values;
};

__device__ __forceinline__ int stage_of(int tile) { return tile % STAGES; }
__device__ __forceinline__ unsigned parity_of(int tile) { return tile / STAGES & 1; }

// One thread brings the tiles of a head from key `start` on; those of [from, to).
struct Feeder {
    Shared& shared;
    const TensorMap &k, &v;
    int start, kv_head, batch;

    __device__ __forceinline__ void bring(Element (&tile)[PANELS][BLOCK_N][64], const TensorMap& map, Ring& ring,
                                          int number) {
        const int stage = stage_of(number);
        barrier_wait(ring.empty[stage], parity_of(number) ^ 1);
        barrier_expect(ring.full[stage], sizeof(tile));
        for (int panel = 0; panel < PANELS; panel++)
            tma_load(tile[panel], map, ring.full[stage], 64 * panel, start + number * BLOCK_N, kv_head, batch);
    }

    __device__ __forceinline__ void feed(int from, int to) {
        for (int tile = from; tile < to; tile++) {
            bring(shared.k[stage_of(tile)], k, shared.keys, tile);
            bring(shared.v[stage_of(tile)], v, shared.values, tile);
        }
    }
};

// The packed rows, swizzled as the copy engine would; the products read them through its proxy.
__device__ __forceinline__ void load_query_panels(Shared& shared, const Element* q, const Packed& packed, i64 q_head,
                                                  i64 q_row) {
    for (int i = threadIdx.x; i < BLOCK_M * PANELS * 8; i += THREADS) {
        const int row = i / (PANELS * 8), chunk = i % (PANELS * 8);
        const bool inside = packed.inside(row) && chunk < CHUNKS;
        const Element* source = q + packed.head(row) * q_head + packed.query(row) * q_row + chunk * 8;
        const unsigned target = shared_address(shared.q[chunk / 8][row]) + (((chunk ^ row) & 7) << 4);
        load_chunk(target, inside ? source : q, inside);
    }
    copy_async_commit();
    copy_async_wait<0>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// One warpgroup's 64 rows.
struct Consumer {
    Shared& shared;
    const int group, lane;
    float o[OUT_TILES][4] = {};
    RowPair rows;

    __device__ __forceinline__ void release(Barrier& barrier) { barrier_arrive_if(lane == 0, barrier); }

    // s = Q K^T, in flight on return. [64, HEAD_DIM] x [BLOCK_N, HEAD_DIM]^T
    __device__ __forceinline__ void issue_scores(float (&s)[KEY_TILES][4], int tile) {
        const int stage = stage_of(tile);
        barrier_wait(shared.keys.full[stage], parity_of(tile));
        multiply_keys(s, shared.q, shared.k[stage], 64 * group);
    }

    // o += P V, in flight on return. [64, BLOCK_N] x [BLOCK_N, HEAD_DIM]
    __device__ __forceinline__ void issue_values(unsigned (&p)[BLOCK_N / 16][4], int tile) {
        const int stage = stage_of(tile);
        barrier_wait(shared.values.full[stage], parity_of(tile));
        multiply_values(o, p, shared.v[stage]);
    }

    // mask(s, tile) hides scores.
    template <class Mask>
    __device__ __forceinline__ void run(int tiles, float scale_log2, Mask mask) {
        float s[KEY_TILES][4], decay[2];
        unsigned p[BLOCK_N / 16][4];
        issue_scores(s, 0);
        wgmma_wait<0>(s);
        release(shared.keys.empty[0]);
        mask(s, 0);
        rows.update(s, scale_log2, decay);
        pack_rows(p, s);
        for (int tile = 1; tile < tiles; tile++) {
            issue_scores(s, tile);
            issue_values(p, tile - 1);
            wgmma_wait<1>(s);
            release(shared.keys.empty[stage_of(tile)]);
            mask(s, tile);
            rows.update(s, scale_log2, decay);
            wgmma_wait<0>(o);
            release(shared.values.empty[stage_of(tile - 1)]);
            scale_rows(o, decay);
            pack_rows(p, s);
        }
        issue_values(p, tiles - 1);
        wgmma_wait<0>(o);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS + 32, BLOCKS)
    attention_split_keys_wgmma(const Element* __restrict__ q, const __grid_constant__ TensorMap k,
                               const __grid_constant__ TensorMap v, Element* __restrict__ out, float* __restrict__ lse,
                               float* __restrict__ parts, float* __restrict__ logs, int kv_heads, int group, int M,
                               int N, int shift, int window, int row_tiles, int splits, int length, i64 q_batch,
                               i64 q_head, i64 q_row, float scale_log2) {
    extern __shared__ __align__(1024) unsigned char memory[];
    let_next_start();
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int piece = blockIdx.x / row_tiles, split = piece % splits, slice = piece / splits;
    const int first_row = blockIdx.x % row_tiles * BLOCK_M;  // side by side, as they read the same keys
    const Packed packed = {slice / kv_heads, slice % kv_heads, first_row, kv_heads, group, M};
    const int start = first_visible_key(0, shift, window) + split * length;
    const int tiles = cdiv(min(length, N - start), BLOCK_N);
    const bool feeding = threadIdx.x == THREADS;
    Feeder feeder = {shared, k, v, start, packed.kv_head, packed.batch};
    if (feeding) {
        shared.keys.init(), shared.values.init();
        barrier_init_fence();
        feeder.feed(0, min(tiles, STAGES));  // while the others load the queries
    } else if (threadIdx.x < THREADS) {
        load_query_panels(shared, q + packed.batch * q_batch, packed, q_head, q_row);
    }
    __syncthreads();
    if (feeding) feeder.feed(STAGES, tiles);
    if (threadIdx.x >= THREADS) return;

    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    Consumer consumer{shared, (int)threadIdx.x / 128, lane};
    consumer.run(tiles, scale_log2, [&](float (&s)[KEY_TILES][4], int tile) {
        const int key = start + tile * BLOCK_N;
        const bool before_end = key + BLOCK_N <= visible_keys(0, shift, N);
        if (before_end && (!WINDOW || key >= first_visible_key(M - 1, shift, window))) return;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int query = packed.query(row + 8 * r);
            mask_row(s, r, key + 2 * (lane & 3), first_visible_key(query, shift, window),
                     visible_keys(query, shift, N));
        }
    });
    if (splits == 1) store_rows(out, lse, packed, consumer.o, consumer.rows, row, scale_log2);
    else store_parts(parts, logs, packed, consumer.o, consumer.rows, row, scale_log2,
                     [&](int at) { return packed.index(at) * splits + split; });
}
