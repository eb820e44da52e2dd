// attention on mma.sync: a block owns BLOCK_M query rows, its warps 16 * ATOMS rows each, and walks the keys in tiles
// of BLOCK_N. Scores and output stay in registers: the accumulator of Q K^T has the layout that P V wants as its left
// operand. K and V tiles arrive through a cp.async ring of STAGES, one barrier per tile.
#ifndef WARPS
#define WARPS 4
#endif
#define THREADS (32 * WARPS)
#include "attention_tiles.cuh"

#define ATOMS (BLOCK_M / (16 * WARPS))
#define KEY_TILES (BLOCK_N / 8)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_tensor_cores(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                           Element* __restrict__ out, float* __restrict__ lse, int slices, int section, int heads,
                           int group, int M, int N, int shift, int window, i64 q_batch, i64 q_head, i64 q_row,
                           i64 k_batch, i64 k_head, i64 k_row, i64 v_batch, i64 v_head, i64 v_row, float scale_log2) {
    extern __shared__ __align__(256) unsigned char shared[];
    const unsigned q_tile = shared_address(shared), ring = q_tile + BLOCK_M * PITCH, stage_bytes = 2 * BLOCK_N * PITCH;
    const Place place = locate(blockIdx.x, {slices, section, heads, group, M, N, shift, window});
    const Element* keys = k + place.batch * k_batch + place.kv_head * k_head;
    const Element* values = v + place.batch * v_batch + place.kv_head * v_head;
    const int first_row = place.first_row, start = place.first_key, tiles = cdiv(place.keys - start, BLOCK_N);

    auto load_stage = [&](int tile) {  // the group is committed even when empty, so that counting groups counts tiles
        if (tile < tiles) {
            const unsigned stage = ring + tile % STAGES * stage_bytes;
            load_tile<BLOCK_N>(stage, keys, k_row, start + tile * BLOCK_N, N);
            load_tile<BLOCK_N>(stage + BLOCK_N * PITCH, values, v_row, start + tile * BLOCK_N, N);
        }
        copy_async_commit();
    };
    load_tile<BLOCK_M>(q_tile, q + place.batch * q_batch + place.head * q_head, q_row, first_row, M);
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) load_stage(tile);

    float o[ATOMS][OUT_TILES][4] = {};
    RowPair rows[ATOMS];
    const int lane = threadIdx.x & 31, warp_row = (threadIdx.x >> 5) * 16 * ATOMS;
    const unsigned q_place = chunk_address(q_tile, warp_row + (lane & 15), lane >> 4);
    for (int tile = 0; tile < tiles; tile++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // this tile has arrived for all, and all have finished with the stage about to be filled
        load_stage(tile + STAGES - 1);
        const unsigned stage = ring + tile % STAGES * stage_bytes;
        const int first_key = start + tile * BLOCK_N;
        float s[ATOMS][KEY_TILES][4] = {};
        compute_scores(s, q_place, stage);
#pragma unroll
        for (int a = 0; a < ATOMS; a++) {
            const int row = first_row + warp_row + 16 * a;
            if (needs_mask(first_key, row, shift, N, window))
                mask_scores(s[a], first_key + (lane & 3) * 2, row + (lane >> 2), shift, N, window);
            float decay[2];
            rows[a].update(s[a], scale_log2, decay);
            // Most tiles after the first bring no row of the warp a new maximum.
            if (__any_sync(0xffffffffu, decay[0] != 1.0f || decay[1] != 1.0f)) scale_rows(o[a], decay);
        }
        add_values(o, s, stage + BLOCK_N * PITCH);
    }
    const i64 slice = (i64)place.slice * M;
#pragma unroll
    for (int a = 0; a < ATOMS; a++) {
        const int row = first_row + warp_row + 16 * a;
        store_rows(out + slice * HEAD_DIM, o[a], rows[a], row, M);
        store_logs(lse + slice, rows[a], row, M, scale_log2);
    }
}
