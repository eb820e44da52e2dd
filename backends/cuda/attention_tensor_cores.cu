// attention on mma.sync: a block owns BLOCK_M query rows, its warps 16 * ATOMS rows each, and walks the keys in tiles
// of BLOCK_N. Scores and output stay in registers: the accumulator of Q K^T has the layout that P V wants as its left
// operand. K and V tiles arrive through a cp.async ring of STAGES, one barrier per tile.
#include "attention.cuh"
#include "tensor_cores.cuh"

#ifndef STAGES
#define STAGES 2
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef VECTOR
#define VECTOR 8  // elements per global load: 8 needs rows aligned to 16 bytes, 1 takes any
#endif

#define THREADS (32 * WARPS)
#define ATOMS (BLOCK_M / (16 * WARPS))
#define CHUNKS (HEAD_DIM / 8)          // 16-byte chunks of a row
#define STEPS ((HEAD_DIM + 15) / 16)   // products of 16 columns; half of the last one may be zeros
#define PITCH ((HEAD_DIM + 63) / 64 * 128)  // bytes of a row in shared memory
#define KEY_TILES (BLOCK_N / 8)
#define OUT_TILES (2 * STEPS)

// Chunks of eight successive rows land in eight different bank groups, as ldmatrix reads them.
__device__ __forceinline__ unsigned chunk_address(unsigned tile, int row, int chunk) {
    return tile + row * PITCH + ((chunk ^ (row & 7)) << 4);
}

__device__ __forceinline__ void load_chunk(unsigned target, const Element* source, bool inside) {
#pragma unroll
    for (int i = 0; i < 8; i += VECTOR) copy_async<2 * VECTOR>(target + 2 * i, source + i, inside);
}

// Rows [first, first + ROWS) of x to shared memory; rows at or past `limit` become zeros, so that 0 * V stays 0.
// Each thread keeps its chunk, of which there may be fewer than threads for it.
template <int ROWS>
__device__ __forceinline__ void load_tile(unsigned tile, const Element* x, i64 stride, int first, int limit) {
    constexpr int SLOTS = CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : 32, STEP = THREADS / SLOTS;
    static_assert(STEP % 4 == 0 && ROWS % STEP == 0, "the swizzle of a row differs from the first one's by row & 4");
    const int row = threadIdx.x / SLOTS, chunk = threadIdx.x % SLOTS;
    if (2 * STEPS < SLOTS && chunk >= 2 * STEPS) return;
    const unsigned target = chunk_address(tile, row, chunk);
    const Element* source = x + (first + row) * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP, source += STEP * stride)
        load_chunk((target ^ (i & 4) << 4) + i * PITCH, source, first + row + i < limit && chunk < CHUNKS);
}

// Where a lane reads from: its row and chunk of the first 16 x 16 piece of a tile. The piece `column` pieces to the
// right lies at `^ 32 * column` in lines of 128 bytes, as the swizzle only exchanges bits. The compiler would keep all
// these places in registers, which the accumulators need; what it cannot see through, it computes again.
__device__ __forceinline__ unsigned piece(unsigned lane_place, int column) {
    if constexpr (HEAD_DIM > 64) asm volatile("" : "+r"(lane_place));
    return (lane_place ^ 32 * (column % 4)) + 128 * (column / 4);
}

// s = Q K^T for this warp's rows. [16 * ATOMS, HEAD_DIM] x [BLOCK_N, HEAD_DIM]^T
__device__ __forceinline__ void compute_scores(float (&s)[ATOMS][KEY_TILES][4], unsigned q_place, unsigned k_tile) {
    const int lane = threadIdx.x & 31;
    const unsigned k_place = chunk_address(k_tile, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
#pragma unroll
    for (int kk = 0; kk < STEPS; kk++) {
        const unsigned q_piece = piece(q_place, kk), k_piece = piece(k_place, kk);
        unsigned q[ATOMS][4];
#pragma unroll
        for (int a = 0; a < ATOMS; a++) load_matrices<false>(q[a], q_piece + 16 * a * PITCH);
#pragma unroll
        for (int j = 0; j < BLOCK_N / 16; j++) {
            unsigned k[4];  // two tiles of 8 keys: {d 0-7, d 8-15} each
            load_matrices<false>(k, k_piece + 16 * j * PITCH);
#pragma unroll
            for (int a = 0; a < ATOMS; a++) {
                mma(s[a][2 * j], q[a], k[0], k[1], Element());
                mma(s[a][2 * j + 1], q[a], k[2], k[3], Element());
            }
        }
    }
}

// o += P V for this warp's rows, P rounded to Element. [16 * ATOMS, BLOCK_N] x [BLOCK_N, HEAD_DIM]
__device__ __forceinline__ void add_values(float (&o)[ATOMS][OUT_TILES][4], const float (&s)[ATOMS][KEY_TILES][4],
                                           unsigned v_tile) {
    const int lane = threadIdx.x & 31;
    const unsigned v_place = chunk_address(v_tile, lane & 15, lane >> 4);
    unsigned p[ATOMS][BLOCK_N / 16][4];
#pragma unroll
    for (int a = 0; a < ATOMS; a++) pack_rows(p[a], s[a]);
#pragma unroll
    for (int j = 0; j < BLOCK_N / 16; j++) {
#pragma unroll
        for (int d = 0; d < STEPS; d++) {
            unsigned v[4];  // two tiles of 8 columns: {keys 0-7, keys 8-15} each
            load_matrices<true>(v, piece(v_place, d) + 16 * j * PITCH);
#pragma unroll
            for (int a = 0; a < ATOMS; a++) {
                mma(o[a][2 * d], p[a][j], v[0], v[1], Element());
                mma(o[a][2 * d + 1], p[a][j], v[2], v[3], Element());
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_tensor_cores(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                           Element* __restrict__ out, float* __restrict__ lse, int slices, int section, int heads,
                           int group, int M, int N, int window, i64 q_batch, i64 q_head, i64 q_row, i64 k_batch,
                           i64 k_head, i64 k_row, i64 v_batch, i64 v_head, i64 v_row, float scale_log2) {
    extern __shared__ __align__(256) unsigned char shared[];
    const unsigned q_tile = shared_address(shared), ring = q_tile + BLOCK_M * PITCH, stage_bytes = 2 * BLOCK_N * PITCH;
    const Place place = locate(blockIdx.x, {slices, section, heads, group, M, N, window});
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
            if (needs_mask(first_key, row, M, N, window))
                mask_scores(s[a], first_key + (lane & 3) * 2, row + (lane >> 2), M, N, window);
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
