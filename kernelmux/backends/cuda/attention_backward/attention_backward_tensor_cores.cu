// attention's gradient on mma.sync, for any head size: a block owns OWN keys (or queries) and walks over TILE queries
// (or keys) at a time; with two stages the next tile is copied meanwhile. A warp keeps the sums of 16 rows in registers.
// SIDES = 1: all of their columns, up to 128; the weights and their gradients stay in registers as the next factor.
// SIDES = 2: two warps keep half of the columns each, up to 256; the weights pass through shared memory.
#include "attention_backward.cuh"
#include "tensor_cores.cuh"

#ifndef OWN
#define OWN 64
#endif
#ifndef TILE
#define TILE 64
#endif
#ifndef STAGES
#define STAGES 1  // tiles in shared memory, 1 or 2
#endif
#ifndef SIDES
#define SIDES 2  // warps for 16 owned rows, 1 or 2
#endif
#ifndef BLOCKS
#define BLOCKS 1  // that share a multiprocessor
#endif
#ifndef VECTOR
#define VECTOR 8  // elements per global load: 8 needs rows aligned to 16 bytes, 1 takes any
#endif

#define THREADS (2 * SIDES * OWN)     // each of two warps for 16 owned rows has half of a tile, then half of the columns
#define STEPS ((HEAD_DIM + 15) / 16)  // a product takes 16 columns; behind HEAD_DIM there are zeros
#define PITCH (32 * STEPS + 16)       // bytes of a row: an odd number of 16-byte chunks lets no eight rows collide
#define WEIGHT_PITCH (2 * TILE + 16)
#define PART (TILE / SIDES)                // of a tile's rows, by one warp
#define KEEP ((STEPS + SIDES - 1) / SIDES)  // of the steps, by one warp

struct alignas(16) Shared {
    unsigned char own[2][OWN][PITCH], tile[STAGES][2][TILE][PITCH];
#if SIDES == 2
    unsigned char weights[2][OWN][WEIGHT_PITCH];
#endif
};

// A warp's place: its 16 owned rows, its half of a tile or of the columns.
__device__ __forceinline__ int warp_row() { return threadIdx.x / (32 * SIDES) * 16; }
__device__ __forceinline__ int side() { return threadIdx.x / 32 % SIDES; }

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

// s = a b^T for 16 owned rows and this warp's part of a tile. [16, HEAD_DIM] x [PART, HEAD_DIM]^T
__device__ __forceinline__ void multiply_rows(float (&s)[PART / 8][4], const unsigned char (&own)[OWN][PITCH],
                                              const unsigned char (&tile)[TILE][PITCH]) {
    const int lane = threadIdx.x % 32;
    const unsigned a_place = shared_address(&own[warp_row() + lane % 16][lane / 16 * 16]);
    const unsigned b_place = shared_address(&tile[side() * PART + lane % 8 + lane / 16 * 8][lane / 8 % 2 * 16]);
#pragma unroll
    for (int i = 0; i < PART / 2; i++) s[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        unsigned a[4];
        load_matrices<false>(a, a_place + 32 * step);
#pragma unroll
        for (int j = 0; j < PART / 16; j++) {
            unsigned b[4];  // two tiles of 8 rows: {columns 0-7, columns 8-15} each
            load_matrices<false>(b, b_place + 32 * step + 16 * j * PITCH);
            mma(s[2 * j], a, b[0], b[1], Element());
            mma(s[2 * j + 1], a, b[2], b[3], Element());
        }
    }
}

// The weights of 16 owned rows, as a factor of the next product: rounded to Element, 16 rows of the tile at a time.
// Two warps that share the rows exchange them through shared memory, between two barriers.
struct Weights {
#if SIDES == 1
    unsigned a[TILE / 16][4];  // what a lane has of 16 x 8 results is what it needs of a 16 x 16 factor
    __device__ __forceinline__ void keep(Shared&, int, const float (&s)[PART / 8][4]) {
#pragma unroll
        for (int i = 0; i < TILE / 4; i++)
            a[i / 4][i % 4] = pair_from_floats<Element>(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
    }
    __device__ __forceinline__ void read(unsigned (&to)[4], const Shared&, int, int n) const {
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = a[n][i];
    }
#else
    __device__ __forceinline__ void keep(Shared& shared, int which, const float (&s)[PART / 8][4]) {
        const int lane = threadIdx.x % 32, row = warp_row() + lane / 4, column = side() * PART + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < TILE / 8; i++)
            *reinterpret_cast<unsigned*>(&shared.weights[which][row + i % 2 * 8][2 * (column + i / 2 * 8)]) =
                pair_from_floats<Element>(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
    }
    __device__ __forceinline__ void read(unsigned (&to)[4], const Shared& shared, int which, int n) const {
        const int lane = threadIdx.x % 32;
        load_matrices<false>(
            to, shared_address(&shared.weights[which][warp_row() + lane % 16][lane / 16 * 16]) + 32 * n);
    }
#endif
};

// sum += weights tile for 16 owned rows and this warp's steps of 16 columns. [16, TILE] x [TILE, HEAD_DIM]
__device__ __forceinline__ void add_columns(float (&sum)[2 * KEEP][4], const Weights& weights, const Shared& shared,
                                            int which, const unsigned char (&tile)[TILE][PITCH]) {
    const int lane = threadIdx.x % 32;
    const unsigned b_place = shared_address(&tile[lane % 16][side() * 32 + lane / 16 * 16]);
#pragma unroll
    for (int n = 0; n < TILE / 16; n++) {
        unsigned a[4];
        weights.read(a, shared, which, n);
#pragma unroll
        for (int i = 0; i < KEEP; i++) {
            if (SIDES * i + side() >= STEPS) continue;  // the warp with fewer columns
            unsigned b[4];  // two tiles of 8 columns: {rows 0-7, rows 8-15} each
            load_matrices<true>(b, b_place + 16 * n * PITCH + 32 * SIDES * i);
            mma(sum[2 * i], a, b[0], b[1], Element());
            mma(sum[2 * i + 1], a, b[2], b[3], Element());
        }
    }
}

__device__ __forceinline__ void store_sums(Element* out, const float (&sum)[2 * KEEP][4], float factor, int first,
                                           int limit) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4 * KEEP; i++) {
        const int row = first + warp_row() + lane / 4 + i % 2 * 8;
        const int column = (SIDES * (i / 4) + side()) * 16 + i / 2 % 2 * 8 + lane % 4 * 2;
        if (row < limit && column < HEAD_DIM)
            *reinterpret_cast<unsigned*>(out + (i64)row * HEAD_DIM + column) =
                pair_from_floats<Element>(sum[i / 2][i % 2 * 2] * factor, sum[i / 2][i % 2 * 2 + 1] * factor);
    }
}

// use(i) for each of `count` tiles once load(i) has put it into shared memory; with two stages load(i + 1) runs beside it.
template <class Load, class Use>
__device__ __forceinline__ void walk(int count, Load load, Use use) {
    if (STAGES == 2 && count > 0) load(0);
    for (int i = 0; i < count; i++) {
        if constexpr (STAGES == 1) {
            __syncthreads();  // all have finished with the last tile
            load(i);
        }
        copy_async_wait<0>();
        __syncthreads();  // with two stages: all have finished with the tile that the next one replaces
        if (STAGES == 2 && i + 1 < count) load(i + 1);
        use(i);
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
    // One walk over the tiles of all heads of the group, so that the next tile is known.
    const int start = range.first / TILE * TILE, tiles = max(0, cdiv(range.end - start, TILE));
    const auto load = [&](int n) {
        const i64 head = kv_head * group + n / tiles;
        const int query = start + n % tiles * TILE;
        auto& tile = shared.tile[n % STAGES];
        load_tile(tile[0], q + batch * q_step.batch + head * q_step.head, q_step.row, query, M);
        load_tile(tile[1], grad_out + batch * grad_step.batch + head * grad_step.head, grad_step.row, query, M);
        copy_async_commit();
    };
    walk(group * tiles, load, [&](int n) {
        const auto& tile = shared.tile[n % STAGES];
        const float* lse = offsets + (batch * heads + kv_head * group + n / tiles) * 2 * pitch;
        const int query = start + n % tiles * TILE;
        float p[PART / 8][4], ds[PART / 8][4];
        multiply_rows(p, shared.own[0], tile[0]);
        multiply_rows(ds, shared.own[1], tile[1]);
        const bool border = !all_seen(query, TILE, first, OWN, shape);
#pragma unroll
        for (int i = 0; i < PART / 2; i++) {
            const int at = query + side() * PART + i / 4 * 8 + lane % 4 * 2 + i % 2;
            float& weight = p[i / 4][i % 4];
            weight = fast_exp2(weight * scale_log2 - __ldg(lse + at));
            ds[i / 4][i % 4] = weight * (ds[i / 4][i % 4] - __ldg(lse + pitch + at));
            if (border && !seen[i % 4 / 2].has(at)) weight = ds[i / 4][i % 4] = 0.0f;
        }
        Weights weights, gradients;
        weights.keep(shared, 0, p), gradients.keep(shared, 1, ds);
        if constexpr (SIDES == 2) __syncthreads();
        add_columns(sum_v, weights, shared, 0, tile[1]);
        add_columns(sum_k, gradients, shared, 1, tile[0]);
    });
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
        const bool border = !all_seen(first, OWN, key, TILE, shape);
#pragma unroll
        for (int i = 0; i < PART / 2; i++) {
            const int at = key + side() * PART + i / 4 * 8 + lane % 4 * 2 + i % 2, r = i % 4 / 2;
            ds[i / 4][i % 4] = fast_exp2(s[i / 4][i % 4] * scale_log2 - lse[r]) * (ds[i / 4][i % 4] - delta[r]);
            if (border && !seen[r].has(at)) ds[i / 4][i % 4] = 0.0f;
        }
        Weights gradients;
        gradients.keep(shared, 0, ds);
        if constexpr (SIDES == 2) __syncthreads();
        add_columns(sum, gradients, shared, 0, tile[0]);
    });
    store_sums(grad_q + (i64)slice * M * HEAD_DIM, sum, scale, first, M);
}
