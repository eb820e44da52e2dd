// attention's gradient on mma.sync, for any head size: a block owns OWN keys (or queries) and walks over TILE queries
// (or keys) at a time. The weights and their gradients are rounded and pass through shared memory, so that the sums
// of the next products can be spread over the warps by columns: a warp keeps half of the columns of 16 rows, which fit
// into its registers up to 256 columns.
#include "attention_backward.cuh"
#include "tensor_cores.cuh"

#ifndef OWN
#define OWN 64
#endif
#ifndef TILE
#define TILE 64
#endif
#ifndef BLOCKS
#define BLOCKS 1  // that share a multiprocessor
#endif
#ifndef VECTOR
#define VECTOR 8  // elements per global load: 8 needs rows aligned to 16 bytes, 1 takes any
#endif

#define THREADS (4 * OWN)             // two warps for 16 owned rows: half of a tile each, then half of the columns
#define STEPS ((HEAD_DIM + 15) / 16)  // a product takes 16 columns; behind HEAD_DIM there are zeros
#define PITCH (32 * STEPS + 16)       // bytes of a row: an odd number of 16-byte chunks lets no eight rows collide
#define WEIGHT_PITCH (2 * TILE + 16)
#define KEEP ((STEPS + 1) / 2)  // of the steps, by one warp

struct alignas(16) Shared {
    unsigned char own[2][OWN][PITCH], tile[2][TILE][PITCH], weights[2][OWN][WEIGHT_PITCH];
};

// A warp's place: its 16 owned rows, its half of a tile or of the columns.
__device__ __forceinline__ int warp_row() { return threadIdx.x / 64 * 16; }
__device__ __forceinline__ int side() { return threadIdx.x / 32 % 2; }

// Starts copying rows [first, first + Rows) of x; those at or past `limit`, and what is behind HEAD_DIM, become zeros.
template <int Rows>
__device__ __forceinline__ void load_tile(unsigned char (&tile)[Rows][PITCH], const Element* x, i64 stride, int first,
                                          int limit) {
    for (int i = threadIdx.x; i < Rows * 2 * STEPS; i += THREADS) {
        const int row = i / (2 * STEPS), column = i % (2 * STEPS) * 8;
        const bool inside = first + row < limit && column < HEAD_DIM;
        const Element* from = inside ? x + (first + row) * stride + column : x;
        const unsigned to = shared_address(&tile[row][2 * column]);
#pragma unroll
        for (int j = 0; j < 8; j += VECTOR) copy_async<2 * VECTOR>(to + 2 * j, from + j, inside);
    }
}

// s = a b^T for 16 owned rows and half of a tile. [16, HEAD_DIM] x [TILE / 2, HEAD_DIM]^T
__device__ __forceinline__ void multiply_rows(float (&s)[TILE / 16][4], const unsigned char (&own)[OWN][PITCH],
                                              const unsigned char (&tile)[TILE][PITCH]) {
    const int lane = threadIdx.x % 32;
    const unsigned a_place = shared_address(&own[warp_row() + lane % 16][lane / 16 * 16]);
    const unsigned b_place = shared_address(&tile[side() * (TILE / 2) + lane % 8 + lane / 16 * 8][lane / 8 % 2 * 16]);
#pragma unroll
    for (int i = 0; i < TILE / 4; i++) s[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        unsigned a[4];
        load_matrices<false>(a, a_place + 32 * step);
#pragma unroll
        for (int j = 0; j < TILE / 32; j++) {
            unsigned b[4];  // two tiles of 8 rows: {columns 0-7, columns 8-15} each
            load_matrices<false>(b, b_place + 32 * step + 16 * j * PITCH);
            mma(s[2 * j], a, b[0], b[1], Element());
            mma(s[2 * j + 1], a, b[2], b[3], Element());
        }
    }
}

// sum += weights tile for 16 owned rows and every other 16 columns. [16, TILE] x [TILE, HEAD_DIM]
__device__ __forceinline__ void add_columns(float (&sum)[2 * KEEP][4],
                                            const unsigned char (&weights)[OWN][WEIGHT_PITCH],
                                            const unsigned char (&tile)[TILE][PITCH]) {
    const int lane = threadIdx.x % 32;
    const unsigned a_place = shared_address(&weights[warp_row() + lane % 16][lane / 16 * 16]);
    const unsigned b_place = shared_address(&tile[lane % 16][side() * 32 + lane / 16 * 16]);
#pragma unroll
    for (int n = 0; n < TILE / 16; n++) {
        unsigned a[4];
        load_matrices<false>(a, a_place + 32 * n);
#pragma unroll
        for (int i = 0; i < KEEP; i++) {
            if (2 * i + side() >= STEPS) continue;  // the warp with fewer columns
            unsigned b[4];  // two tiles of 8 columns: {rows 0-7, rows 8-15} each
            load_matrices<true>(b, b_place + 16 * n * PITCH + 64 * i);
            mma(sum[2 * i], a, b[0], b[1], Element());
            mma(sum[2 * i + 1], a, b[2], b[3], Element());
        }
    }
}

// What this warp knows of 16 rows and half of a tile goes to shared memory, rounded to Element.
__device__ __forceinline__ void store_weights(unsigned char (&weights)[OWN][WEIGHT_PITCH],
                                              const float (&s)[TILE / 16][4]) {
    const int lane = threadIdx.x % 32, row = warp_row() + lane / 4, column = side() * (TILE / 2) + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < TILE / 8; i++)
        *reinterpret_cast<unsigned*>(&weights[row + i % 2 * 8][2 * (column + i / 2 * 8)]) =
            pair_from_floats<Element>(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
}

__device__ __forceinline__ void store_sums(Element* out, const float (&sum)[2 * KEEP][4], float factor, int first,
                                           int limit) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4 * KEEP; i++) {
        const int row = first + warp_row() + lane / 4 + i % 2 * 8;
        const int column = (2 * (i / 4) + side()) * 16 + i / 2 % 2 * 8 + lane % 4 * 2;
        if (row < limit && column < HEAD_DIM)
            *reinterpret_cast<unsigned*>(out + (i64)row * HEAD_DIM + column) =
                pair_from_floats<Element>(sum[i / 2][i % 2 * 2] * factor, sum[i / 2][i % 2 * 2 + 1] * factor);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_backward_keys(const Element* __restrict__ grad_out, const Element* __restrict__ q,
                            const Element* __restrict__ k, const Element* __restrict__ v,
                            const float* __restrict__ offsets, Element* __restrict__ grad_k,
                            Element* __restrict__ grad_v, const __grid_constant__ Strides grad_step,
                            const __grid_constant__ Strides q_step, const __grid_constant__ Strides k_step,
                            const __grid_constant__ Strides v_step, int heads, int group, int M, int N, int pitch,
                            int shift, int window, float scale, float scale_log2) {
    extern __shared__ __align__(16) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Shape shape = {heads, group, M, N, pitch, shift, window};
    const int kv_heads = heads / group, kv_slices = gridDim.x / cdiv(N, OWN);
    const int slice = blockIdx.x % kv_slices, first = blockIdx.x / kv_slices * OWN;  // the most queries first if causal
    const i64 batch = slice / kv_heads, kv_head = slice % kv_heads;
    const int lane = threadIdx.x % 32, key = first + warp_row() + lane / 4;
    const Interval seen[2] = {queries_of(key, shape), queries_of(key + 8, shape)};
    const Interval range = queries_of_tile(first, OWN, shape);
    float sum_k[2 * KEEP][4] = {}, sum_v[2 * KEEP][4] = {};
    load_tile(shared.own[0], k + batch * k_step.batch + kv_head * k_step.head, k_step.row, first, N);
    load_tile(shared.own[1], v + batch * v_step.batch + kv_head * v_step.head, v_step.row, first, N);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        const float* lse = offsets + (batch * heads + head) * 2 * pitch;
        for (int query = range.first / TILE * TILE; query < range.end; query += TILE) {
            __syncthreads();  // all have finished with the last tile
            load_tile(shared.tile[0], q + batch * q_step.batch + head * q_step.head, q_step.row, query, M);
            load_tile(shared.tile[1], grad_out + batch * grad_step.batch + head * grad_step.head, grad_step.row, query,
                      M);
            copy_async_commit(), copy_async_wait<0>();
            __syncthreads();
            float p[TILE / 16][4], ds[TILE / 16][4];
            multiply_rows(p, shared.own[0], shared.tile[0]);
            multiply_rows(ds, shared.own[1], shared.tile[1]);
            const bool border = !all_seen(query, TILE, first, OWN, shape);
#pragma unroll
            for (int i = 0; i < TILE / 4; i++) {
                const int at = query + side() * (TILE / 2) + i / 4 * 8 + lane % 4 * 2 + i % 2;
                float& weight = p[i / 4][i % 4];
                weight = fast_exp2(weight * scale_log2 - __ldg(lse + at));
                ds[i / 4][i % 4] = weight * (ds[i / 4][i % 4] - __ldg(lse + pitch + at));
                if (border && !seen[i % 4 / 2].has(at)) weight = ds[i / 4][i % 4] = 0.0f;
            }
            store_weights(shared.weights[0], p), store_weights(shared.weights[1], ds);
            __syncthreads();
            add_columns(sum_v, shared.weights[0], shared.tile[1]);
            add_columns(sum_k, shared.weights[1], shared.tile[0]);
        }
    }
    store_sums(grad_k + (i64)slice * N * HEAD_DIM, sum_k, scale, first, N);
    store_sums(grad_v + (i64)slice * N * HEAD_DIM, sum_v, 1.0f, first, N);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_backward_queries(const Element* __restrict__ grad_out, const Element* __restrict__ q,
                               const Element* __restrict__ k, const Element* __restrict__ v,
                               const float* __restrict__ offsets, Element* __restrict__ grad_q,
                               const __grid_constant__ Strides grad_step, const __grid_constant__ Strides q_step,
                               const __grid_constant__ Strides k_step, const __grid_constant__ Strides v_step,
                               int heads, int group, int M, int N, int pitch, int shift, int window, float scale,
                               float scale_log2) {
    extern __shared__ __align__(16) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Shape shape = {heads, group, M, N, pitch, shift, window};
    const int tiles = cdiv(M, OWN), slices = gridDim.x / tiles, slice = blockIdx.x % slices;
    const int first = (CAUSAL ? tiles - 1 - blockIdx.x / slices : blockIdx.x / slices) * OWN;
    const i64 batch = slice / heads, head = slice % heads, kv_head = head / group;
    const int lane = threadIdx.x % 32, query = first + warp_row() + lane / 4;
    const Interval seen[2] = {keys_of(query, shape), keys_of(query + 8, shape)};
    const Interval range = keys_of_tile(first, OWN, shape);
    const float* place = offsets + (i64)slice * 2 * pitch + query;
    const float lse[2] = {place[0], place[8]}, delta[2] = {place[pitch], place[pitch + 8]};
    float sum[2 * KEEP][4] = {};
    load_tile(shared.own[0], q + batch * q_step.batch + head * q_step.head, q_step.row, first, M);
    load_tile(shared.own[1], grad_out + batch * grad_step.batch + head * grad_step.head, grad_step.row, first, M);
    for (int key = range.first / TILE * TILE; key < range.end; key += TILE) {
        __syncthreads();  // all have finished with the last tile
        load_tile(shared.tile[0], k + batch * k_step.batch + kv_head * k_step.head, k_step.row, key, N);
        load_tile(shared.tile[1], v + batch * v_step.batch + kv_head * v_step.head, v_step.row, key, N);
        copy_async_commit(), copy_async_wait<0>();
        __syncthreads();
        float s[TILE / 16][4], ds[TILE / 16][4];
        multiply_rows(s, shared.own[0], shared.tile[0]);
        multiply_rows(ds, shared.own[1], shared.tile[1]);
        const bool border = !all_seen(first, OWN, key, TILE, shape);
#pragma unroll
        for (int i = 0; i < TILE / 4; i++) {
            const int at = key + side() * (TILE / 2) + i / 4 * 8 + lane % 4 * 2 + i % 2, r = i % 4 / 2;
            ds[i / 4][i % 4] = fast_exp2(s[i / 4][i % 4] * scale_log2 - lse[r]) * (ds[i / 4][i % 4] - delta[r]);
            if (border && !seen[r].has(at)) ds[i / 4][i % 4] = 0.0f;
        }
        store_weights(shared.weights[0], ds);
        __syncthreads();
        add_columns(sum, shared.weights[0], shared.tile[0]);
    }
    store_sums(grad_q + (i64)slice * M * HEAD_DIM, sum, scale, first, M);
}
