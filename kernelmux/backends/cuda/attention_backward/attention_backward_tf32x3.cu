// attention's gradient of fp32 on mma.sync, each product as three of tf32 (attention_backward_tf32x3.cuh): a block owns OWN
// keys (or queries) and walks over TILE queries (or keys) at a time; with two stages the next tile is copied meanwhile. A
// warp keeps the sums of 16 rows in registers.
// SIDES = 1: all of their columns, up to 128; the weights and their gradients stay in registers as the next factor.
// SIDES = 2: two warps keep half of the columns each, up to 256; the weights pass through shared memory.
#include "attention_backward_tf32x3.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_backward_keys(const float* __restrict__ grad_out, const float* __restrict__ q,
                            const float* __restrict__ k, const float* __restrict__ v,
                            const float* __restrict__ offsets, float* __restrict__ grad_k, float* __restrict__ grad_v,
                            const __grid_constant__ Strides grad_step, const __grid_constant__ Strides q_step,
                            const __grid_constant__ Strides k_step, const __grid_constant__ Strides v_step, int heads,
                            int group, int M, int N, int pitch, int shift, int window, float scale, float scale_log2) {
    extern __shared__ __align__(16) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Shape shape = {heads, group, M, N, pitch, shift, window};
    const int kv_heads = heads / group, kv_slices = gridDim.x / cdiv(N, OWN);
    const int slice = blockIdx.x % kv_slices, first = blockIdx.x / kv_slices * OWN;  // the most queries first if causal
    const i64 batch = slice / kv_heads, kv_head = slice % kv_heads;
    const int lane = threadIdx.x % 32, key = first + warp_row() + lane / 4;
    const Interval range = queries_of_tile(first, OWN, shape);
    float sum_k[KEEP][2][4] = {}, sum_v[KEEP][2][4] = {};
    if (threadIdx.x == 0) shared.slice = slice;
    load_tile(shared.own[0], k + batch * k_step.batch + kv_head * k_step.head, k_step.row, first, N);
    load_tile(shared.own[1], v + batch * v_step.batch + kv_head * v_step.head, v_step.row, first, N);
    // One walk over the tiles of all heads of the group, so that the next tile is known.
    const int start = range.first / TILE * TILE, tiles = max(0, cdiv(range.end - start, TILE));
    const auto load = [&](int n) {
        auto& tile = shared.tile[n % STAGES];
        const int slice = computed_here(blockIdx.x) % kv_slices;
        const i64 batch = slice / kv_heads, head = slice % kv_heads * group + n / tiles;
        const int query = start + n % tiles * TILE;
        load_tile(tile[0], q + batch * q_step.batch + head * q_step.head, q_step.row, query, M);
        load_tile(tile[1], grad_out + batch * grad_step.batch + head * grad_step.head, grad_step.row, query, M);
        load_offsets(shared.offsets[n % STAGES], offsets + (batch * heads + head) * 2 * pitch, pitch, query);
        copy_async_commit();
    };
    walk(group * tiles, load, [&](int n) {
        const auto& tile = shared.tile[n % STAGES];
        const auto& subtract = shared.offsets[n % STAGES];
        const int query = start + n % tiles * TILE;
        float p[PART / 8][4], ds[PART / 8][4];
        multiply_rows(p, shared.own[0], tile[0]);
        multiply_rows(ds, shared.own[1], tile[1]);
#pragma unroll
        for (int i = 0; i < PART / 2; i++) {
            const int at = side() * PART + i / 4 * 8 + lane % 4 * 2 + i % 2;
            float& weight = p[i / 4][i % 4];
            weight = fast_exp2(weight * scale_log2 - subtract[0][at]);
            ds[i / 4][i % 4] = weight * (ds[i / 4][i % 4] - subtract[1][at]);
        }
        if (!all_seen(query, TILE, computed_here(first), OWN, shape)) {
            const int row = computed_here(key);
            const Interval seen[2] = {queries_of(row, shape), queries_of(row + 8, shape)};
#pragma unroll
            for (int i = 0; i < PART / 2; i++) {
                const int at = query + side() * PART + i / 4 * 8 + lane % 4 * 2 + i % 2;
                if (!seen[i % 4 / 2].has(at)) p[i / 4][i % 4] = ds[i / 4][i % 4] = 0.0f;
            }
        }
        Weights weights;
        weights.keep(shared, 0, p);
        if constexpr (SIDES == 2) {
            weights.keep(shared, 1, ds);
            __syncthreads();
        }
        weights.read(shared, 0);
        add_columns(sum_v, weights, tile[1]);
        if constexpr (SIDES == 1) weights.keep(shared, 1, ds);
        weights.read(shared, 1);
        add_columns(sum_k, weights, tile[0]);
    });
    __syncthreads();
    const i64 out = (i64)shared.slice * N * HEAD_DIM;
    store_sums(grad_k + out, sum_k, scale, first, N);
    store_sums(grad_v + out, sum_v, 1.0f, first, N);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_backward_queries(const float* __restrict__ grad_out, const float* __restrict__ q,
                               const float* __restrict__ k, const float* __restrict__ v,
                               const float* __restrict__ offsets, float* __restrict__ grad_q,
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
    const Interval range = keys_of_tile(first, OWN, shape);
    const float* place = offsets + (i64)slice * 2 * pitch + query;
    const float lse[2] = {place[0], place[8]}, delta[2] = {place[pitch], place[pitch + 8]};
    float sum[KEEP][2][4] = {};
    if (threadIdx.x == 0) shared.slice = slice;
    load_tile(shared.own[0], q + batch * q_step.batch + head * q_step.head, q_step.row, first, M);
    load_tile(shared.own[1], grad_out + batch * grad_step.batch + head * grad_step.head, grad_step.row, first, M);
    const int start = range.first / TILE * TILE;
    const auto load = [&](int n) {
        auto& tile = shared.tile[n % STAGES];
        load_tile(tile[0], k + batch * k_step.batch + kv_head * k_step.head, k_step.row, start + n * TILE, N);
        load_tile(tile[1], v + batch * v_step.batch + kv_head * v_step.head, v_step.row, start + n * TILE, N);
        copy_async_commit();
    };
    walk(cdiv(range.end - start, TILE), load, [&](int n) {
        const auto& tile = shared.tile[n % STAGES];
        const int key = start + n * TILE;
        float s[PART / 8][4], ds[PART / 8][4];
        multiply_rows(s, shared.own[0], tile[0]);
        multiply_rows(ds, shared.own[1], tile[1]);
#pragma unroll
        for (int i = 0; i < PART / 2; i++) {
            const int r = i % 4 / 2;
            ds[i / 4][i % 4] = fast_exp2(s[i / 4][i % 4] * scale_log2 - lse[r]) * (ds[i / 4][i % 4] - delta[r]);
        }
        if (!all_seen(computed_here(first), OWN, key, TILE, shape)) {
            const int row = computed_here(query);
            const Interval seen[2] = {keys_of(row, shape), keys_of(row + 8, shape)};
#pragma unroll
            for (int i = 0; i < PART / 2; i++) {
                const int at = key + side() * PART + i / 4 * 8 + lane % 4 * 2 + i % 2;
                if (!seen[i % 4 / 2].has(at)) ds[i / 4][i % 4] = 0.0f;
            }
        }
        Weights gradients;
        gradients.keep(shared, 0, ds);
        if constexpr (SIDES == 2) __syncthreads();
        gradients.read(shared, 0);
        add_columns(sum, gradients, tile[0]);
    });
    __syncthreads();
    store_sums(grad_q + (i64)shared.slice * M * HEAD_DIM, sum, scale, first, M);
}
