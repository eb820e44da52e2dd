// attention's gradient on the FP32 pipes. The M x N weights are computed again, twice: once by blocks that own keys and
// walk over the queries of all heads that share them (grad_k, grad_v), once by blocks that own queries and walk over
// the keys (grad_q). Each sum then has one owner and one order, without atomics. Eight lanes share an owned row, an
// eighth of its columns each, in registers; the rows that they walk over are in shared memory.
#include "attention_backward.cuh"

#define LANES 8
#define THREADS 256
#define OWN (THREADS / LANES)  // rows of a block
#define TILE 16                // rows in shared memory
#define COLUMNS (HEAD_DIM / LANES)

struct Tile {
    float x[TILE][HEAD_DIM];
};

// Column i of a lane: the eight lanes read adjacent floats, all other rows of the warp the same ones.
__device__ __forceinline__ int column(int i) { return i * LANES + threadIdx.x % LANES; }

__device__ __forceinline__ void load_tile(Tile& tile, const Element* x, i64 stride, int first, int limit) {
    for (int i = threadIdx.x; i < TILE * HEAD_DIM; i += THREADS) {
        const int row = i / HEAD_DIM, d = i % HEAD_DIM;
        tile.x[row][d] = first + row < limit ? to_float(x[(first + row) * stride + d]) : 0.0f;
    }
}

__device__ __forceinline__ void load_own(float (&own)[COLUMNS], const Element* row) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) own[i] = to_float(row[column(i)]);
}

__device__ __forceinline__ void store_own(Element* row, const float (&sum)[COLUMNS], float factor) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) row[column(i)] = from_float<Element>(sum[i] * factor);
}

__device__ __forceinline__ float dot(const float (&own)[COLUMNS], const float (&row)[HEAD_DIM]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) sum += own[i] * row[column(i)];
    return warp_reduce<LANES>(sum, Sum());
}

__device__ __forceinline__ void add(float (&sum)[COLUMNS], float factor, const float (&row)[HEAD_DIM]) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) sum[i] += factor * row[column(i)];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_keys(const Element* __restrict__ grad_out, const Element* __restrict__ q,
                            const Element* __restrict__ k, const Element* __restrict__ v,
                            const float* __restrict__ offsets, Element* __restrict__ grad_k,
                            Element* __restrict__ grad_v, const __grid_constant__ Strides grad_step,
                            const __grid_constant__ Strides q_step, const __grid_constant__ Strides k_step,
                            const __grid_constant__ Strides v_step, int heads, int group, int M, int N, int pitch,
                            int shift, int window, float scale, float scale_log2) {
    __shared__ Tile queries, grads;
    const Shape shape = {heads, group, M, N, pitch, shift, window};
    const int tiles = cdiv(N, OWN), kv_heads = heads / group, slice = blockIdx.x / tiles;
    const int first = blockIdx.x % tiles * OWN, key = first + threadIdx.x / LANES, row = min(key, N - 1);
    const i64 batch = slice / kv_heads, kv_head = slice % kv_heads;
    const Interval seen = queries_of(key, shape), range = queries_of_tile(first, OWN, shape);
    float own_k[COLUMNS], own_v[COLUMNS], sum_k[COLUMNS] = {}, sum_v[COLUMNS] = {};
    load_own(own_k, k + batch * k_step.batch + kv_head * k_step.head + row * k_step.row);
    load_own(own_v, v + batch * v_step.batch + kv_head * v_step.head + row * v_step.row);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        const float* lse = offsets + (batch * heads + head) * 2 * pitch;
        for (int query = range.first; query < range.end; query += TILE) {
            __syncthreads();
            load_tile(queries, q + batch * q_step.batch + head * q_step.head, q_step.row, query, M);
            load_tile(grads, grad_out + batch * grad_step.batch + head * grad_step.head, grad_step.row, query, M);
            __syncthreads();
#pragma unroll 1
            for (int i = 0; i < TILE; i++) {
                const float s = dot(own_k, queries.x[i]), dp = dot(own_v, grads.x[i]);
                if (!seen.has(query + i)) continue;  // all eight lanes alike
                const float p = fast_exp2(s * scale_log2 - lse[query + i]), ds = p * (dp - lse[pitch + query + i]);
                add(sum_k, ds, queries.x[i]);
                add(sum_v, p, grads.x[i]);
            }
        }
    }
    const i64 out = ((i64)slice * N + key) * HEAD_DIM;
    if (key < N) store_own(grad_k + out, sum_k, scale), store_own(grad_v + out, sum_v, 1.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_queries(const Element* __restrict__ grad_out, const Element* __restrict__ q,
                               const Element* __restrict__ k, const Element* __restrict__ v,
                               const float* __restrict__ offsets, Element* __restrict__ grad_q,
                               const __grid_constant__ Strides grad_step, const __grid_constant__ Strides q_step,
                               const __grid_constant__ Strides k_step, const __grid_constant__ Strides v_step,
                               int heads, int group, int M, int N, int pitch, int shift, int window, float scale,
                               float scale_log2) {
    __shared__ Tile keys, values;
    const Shape shape = {heads, group, M, N, pitch, shift, window};
    const int tiles = cdiv(M, OWN), slice = blockIdx.x / tiles;
    const int first = blockIdx.x % tiles * OWN, query = first + threadIdx.x / LANES, row = min(query, M - 1);
    const i64 batch = slice / heads, head = slice % heads, kv_head = head / group;
    const Interval seen = keys_of(query, shape), range = keys_of_tile(first, OWN, shape);
    float own_q[COLUMNS], own_grad[COLUMNS], sum[COLUMNS] = {};
    load_own(own_q, q + batch * q_step.batch + head * q_step.head + row * q_step.row);
    load_own(own_grad, grad_out + batch * grad_step.batch + head * grad_step.head + row * grad_step.row);
    const float* place = offsets + (i64)slice * 2 * pitch + row;
    const float lse = place[0], delta = place[pitch];
    for (int key = range.first; key < range.end; key += TILE) {
        __syncthreads();
        load_tile(keys, k + batch * k_step.batch + kv_head * k_step.head, k_step.row, key, N);
        load_tile(values, v + batch * v_step.batch + kv_head * v_step.head, v_step.row, key, N);
        __syncthreads();
#pragma unroll 1
        for (int j = 0; j < TILE; j++) {
            const float s = dot(own_q, keys.x[j]), dp = dot(own_grad, values.x[j]);
            if (!seen.has(key + j)) continue;  // all eight lanes alike
            add(sum, fast_exp2(s * scale_log2 - lse) * (dp - delta), keys.x[j]);
        }
    }
    if (query < M) store_own(grad_q + ((i64)slice * M + query) * HEAD_DIM, sum, scale);
}
