// attention on mma.sync: a block owns BLOCK_M query rows, its warps 16 * ATOMS rows each, and walks the keys in tiles
// of BLOCK_N. Scores and output stay in registers: the accumulator of Q K^T has the layout that P V wants as its left
// operand. K and V tiles arrive through a cp.async ring of STAGES, one barrier per tile.
#include "attention.cuh"

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
#define CHUNKS (HEAD_DIM / 8)  // 16-byte chunks of a row
#define PITCH (HEAD_DIM * 2)   // bytes of a row in shared memory
#define KEY_TILES (BLOCK_N / 8)
#define OUT_TILES (HEAD_DIM / 8)

// Chunks of eight successive rows land in eight different bank groups, as ldmatrix reads them.
__device__ __forceinline__ unsigned chunk_address(unsigned tile, int row, int chunk) {
    return tile + row * PITCH + ((chunk ^ (row & 7)) << 4);
}

__device__ __forceinline__ void load_chunk(unsigned target, const Element* source, bool inside) {
#if VECTOR == 8
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(inside ? 16 : 0));
#else
    unsigned word[4] = {};
    if (inside) {
        const unsigned short* bits = reinterpret_cast<const unsigned short*>(source);
#pragma unroll
        for (int i = 0; i < 4; i++) word[i] = bits[2 * i] | bits[2 * i + 1] << 16;
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3]) : "memory");
#endif
}

// Rows [first, first + ROWS) of x to shared memory; rows at or past `limit` become zeros, so that 0 * V stays 0.
// Each thread keeps its chunk and, its rows being a multiple of 8 apart, the chunk's place in the swizzle.
template <int ROWS>
__device__ __forceinline__ void load_tile(unsigned tile, const Element* x, i64 stride, int first, int limit) {
    constexpr int STEP = THREADS / CHUNKS;
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "the swizzle must not depend on the iteration");
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const unsigned target = chunk_address(tile, row, chunk);
    const Element* source = x + (first + row) * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP, source += STEP * stride)
        load_chunk(target + i * PITCH, source, first + row + i < limit);
}

__device__ __forceinline__ void ldmatrix(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix_transposed(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

#define MMA(TYPE)                                                                                  \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, " \
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __half) {
    MMA("f16");
}
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __nv_bfloat16) {
    MMA("bf16");
}

// s = Q K^T for this warp's rows. [16 * ATOMS, HEAD_DIM] x [BLOCK_N, HEAD_DIM]^T
__device__ __forceinline__ void compute_scores(float (&s)[ATOMS][KEY_TILES][4], unsigned q_tile, unsigned k_tile) {
    const int lane = threadIdx.x & 31, warp_row = (threadIdx.x >> 5) * 16 * ATOMS;
#pragma unroll
    for (int kk = 0; kk < HEAD_DIM / 16; kk++) {
        unsigned q[ATOMS][4];
#pragma unroll
        for (int a = 0; a < ATOMS; a++)
            ldmatrix(q[a], chunk_address(q_tile, warp_row + 16 * a + (lane & 15), 2 * kk + (lane >> 4)));
#pragma unroll
        for (int j = 0; j < BLOCK_N / 16; j++) {
            unsigned k[4];  // two tiles of 8 keys: {d 0-7, d 8-15} each
            ldmatrix(k, chunk_address(k_tile, 16 * j + (lane & 7) + (lane >> 4) * 8, 2 * kk + (lane >> 3 & 1)));
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
    unsigned p[ATOMS][BLOCK_N / 16][4];
#pragma unroll
    for (int a = 0; a < ATOMS; a++) pack_rows(p[a], s[a]);
#pragma unroll
    for (int j = 0; j < BLOCK_N / 16; j++) {
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
            unsigned v[4];  // two tiles of 8 columns: {keys 0-7, keys 8-15} each
            ldmatrix_transposed(v, chunk_address(v_tile, 16 * j + (lane & 15), 2 * d + (lane >> 4)));
#pragma unroll
            for (int a = 0; a < ATOMS; a++) {
                mma(o[a][2 * d], p[a][j], v[0], v[1], Element());
                mma(o[a][2 * d + 1], p[a][j], v[2], v[3], Element());
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_tensor_cores(
    const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
    Element* __restrict__ out, int heads, int group, int M, int N, i64 q_batch, i64 q_head, i64 q_row, i64 k_batch,
    i64 k_head, i64 k_row, i64 v_batch, i64 v_head, i64 v_row, float scale_log2) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned q_tile = shared_address(shared), ring = q_tile + BLOCK_M * PITCH, stage_bytes = 2 * BLOCK_N * PITCH;
    const Place place = locate(heads, group, M, N);
    const Element* keys = k + place.batch * k_batch + place.kv_head * k_head;
    const Element* values = v + place.batch * v_batch + place.kv_head * v_head;
    const int first_row = place.first_row, tiles = cdiv(place.keys, BLOCK_N);

    auto load_stage = [&](int tile) {  // the group is committed even when empty, so that counting groups counts tiles
        if (tile < tiles) {
            const unsigned stage = ring + tile % STAGES * stage_bytes;
            load_tile<BLOCK_N>(stage, keys, k_row, tile * BLOCK_N, N);
            load_tile<BLOCK_N>(stage + BLOCK_N * PITCH, values, v_row, tile * BLOCK_N, N);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    load_tile<BLOCK_M>(q_tile, q + place.batch * q_batch + place.head * q_head, q_row, first_row, M);
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) load_stage(tile);

    float o[ATOMS][OUT_TILES][4] = {};
    RowPair rows[ATOMS];
    const int lane = threadIdx.x & 31, warp_row = (threadIdx.x >> 5) * 16 * ATOMS;
    for (int tile = 0; tile < tiles; tile++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();  // this tile has arrived for all, and all have finished with the stage about to be filled
        load_stage(tile + STAGES - 1);
        const unsigned stage = ring + tile % STAGES * stage_bytes;
        const int first_key = tile * BLOCK_N;
        float s[ATOMS][KEY_TILES][4] = {};
        compute_scores(s, q_tile, stage);
#pragma unroll
        for (int a = 0; a < ATOMS; a++) {
            const int row = first_row + warp_row + 16 * a;
            if (first_key + BLOCK_N > visible_keys(row, M, N))
                mask_scores(s[a], first_key + (lane & 3) * 2, row + (lane >> 2), M, N);
            float decay[2];
            rows[a].update(s[a], scale_log2, decay);
            scale_rows(o[a], decay);
        }
        add_values(o, s, stage + BLOCK_N * PITCH);
    }
    Element* slice = out + (i64)place.slice * M * HEAD_DIM;
#pragma unroll
    for (int a = 0; a < ATOMS; a++) store_rows(slice, o[a], rows[a], first_row + warp_row + 16 * a, M);
}
