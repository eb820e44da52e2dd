// grad_k and grad_v on Hopper's warpgroup products: a block owns keys and walks over the queries of all heads that
// share them. The scores are computed transposed, keys by queries: then weights and their gradients come out of the
// tensor cores as the left operand of grad_v += p^T grad_out and grad_k += ds^T q, and never leave the registers. These
// are then too full for two tiles at a time: what one warpgroup waits for, the other fills.
#include "attention_backward_wgmma.cuh"
#include "dependent_launch.cuh"

struct alignas(1024) Shared {
    Panels<OWN> k, v;
    Panels<TILE> q[STAGES], grad[STAGES];
    float offsets[STAGES][2][TILE];
    Barrier own, full[STAGES], empty[STAGES];
    Turns turns;
};

// The block's keys, and the queries that see any of them, from a multiple of 8 on: of their
// offsets copies want whole 16 bytes.
struct Work {
    int batch, kv_head, first_key;
    Interval queries;
};

__device__ __forceinline__ void produce(Shared& shared, const TensorMap& grad_out, const TensorMap& q,
                                        const TensorMap& k, const TensorMap& v, const float* offsets, const Work& work,
                                        const Shape& shape) {
    barrier_expect(shared.own, sizeof(shared.k) + sizeof(shared.v));
    load_panels(shared.k, k, shared.own, work.first_key, work.kv_head, work.batch);
    load_panels(shared.v, v, shared.own, work.first_key, work.kv_head, work.batch);
    RingPlace<STAGES> place;
    for (int head = work.kv_head * shape.group; head < (work.kv_head + 1) * shape.group; head++) {
        const float* row = offsets + ((i64)work.batch * shape.heads + head) * 2 * shape.pitch;
        for (int query = work.queries.first; query < work.queries.end; query += TILE, place.advance()) {
            const int stage = place.stage;
            Barrier& full = shared.full[stage];
            barrier_wait(shared.empty[stage], place.phase ^ 1);
            barrier_expect(full, 2 * sizeof(shared.q[0]) + sizeof(shared.offsets[0]));
            load_panels(shared.q[stage], q, full, query, head, work.batch);
            bulk_load(shared.offsets[stage][0], row + query, full, TILE * 4);
            bulk_load(shared.offsets[stage][1], row + shape.pitch + query, full, TILE * 4);
            load_panels(shared.grad[stage], grad_out, full, query, head, work.batch);
        }
    }
}

// One warpgroup's 64 keys.
struct Consumer {
    Shared& shared;
    const int group, lane, warp;
    float grad_k[COLUMN_TILES][4], grad_v[COLUMN_TILES][4], s[TILE / 8][4], dp[TILE / 8][4];
    unsigned p[TILE / 16][4], ds[TILE / 16][4];

    __device__ __forceinline__ float2 offset(int stage, int which, int i) const {
        return *reinterpret_cast<const float2*>(&shared.offsets[stage][which][8 * i + lane % 4 * 2]);
    }

    // Scores to weights.
    __device__ __forceinline__ void exponentials(float (&s)[TILE / 8][4], int stage, float scale_log2) {
#pragma unroll
        for (int i = 0; i < TILE / 8; i++) {
            const float2 log_sum = offset(stage, 0, i);
#pragma unroll
            for (int r = 0; r < 4; r += 2) {
                s[i][r] = fast_exp2(s[i][r] * scale_log2 - log_sum.x);
                s[i][r + 1] = fast_exp2(s[i][r + 1] * scale_log2 - log_sum.y);
            }
        }
    }

    // Gradients of weights to those of scores.
    __device__ __forceinline__ void differentiate(float (&dp)[TILE / 8][4], const float (&p)[TILE / 8][4], int stage) {
#pragma unroll
        for (int i = 0; i < TILE / 8; i++) {
            const float2 delta = offset(stage, 1, i);
#pragma unroll
            for (int r = 0; r < 4; r += 2) {
                dp[i][r] = p[i][r] * (dp[i][r] - delta.x);
                dp[i][r + 1] = p[i][r + 1] * (dp[i][r + 1] - delta.y);
            }
        }
    }

    __device__ __forceinline__ void issue_scores(int stage) {
        wgmma_fence();
        issue_rows(s, shared.k, group, shared.q[stage]);
        issue_rows(dp, shared.v, group, shared.grad[stage]);
    }

    __device__ __forceinline__ void issue_sums(int stage) {
        issue_columns(grad_v, p, shared.grad[stage]);
        issue_columns(grad_k, ds, shared.q[stage]);
    }

    // The scores of the queries from `query` on to weights, and these to gradients of the scores.
    __device__ __forceinline__ void weigh(int stage, int query, const Work& work, const Shape& shape,
                                          float scale_log2) {
        const int own = work.first_key + 64 * group, key = own + 16 * warp + lane / 4, column = query + lane % 4 * 2;
        const bool border = !all_seen(query, TILE, own, 64, shape);
        wgmma_wait<1>(s);
        exponentials(s, stage, scale_log2);
        if (border) mask(s, 0, queries_of(key, shape), column), mask(s, 1, queries_of(key + 8, shape), column);
        wgmma_wait<0>(dp);
        differentiate(dp, s, stage);
        if (border) mask(dp, 0, queries_of(key, shape), column), mask(dp, 1, queries_of(key + 8, shape), column);
    }

    __device__ __forceinline__ void run(const Work& work, const Shape& shape, float scale_log2) {
        const bool speaks = lane == 0;
        const int per_head = max(0, cdiv(work.queries.end - work.queries.first, TILE)), tiles = per_head * shape.group;
        clear(grad_k), clear(grad_v);
        shared.turns.begin(group, speaks);
        barrier_wait(shared.own, 0);
        RingPlace<STAGES> place;
        int query = work.queries.first;
        for (int tile = 0; tile < tiles; tile++, place.advance()) {
            barrier_wait(shared.full[place.stage], place.phase);
            shared.turns.take(group, tile);
            issue_scores(place.stage);
            shared.turns.pass(group, speaks);
            weigh(place.stage, query, work, shape, scale_log2);
            pack(p, s), pack(ds, dp);
            issue_sums(place.stage);
            wgmma_wait<0>(grad_k), pin(grad_v);
            barrier_arrive_if(speaks, shared.empty[place.stage]);
            query = query + TILE < work.queries.end ? query + TILE : work.queries.first;  // of the next head
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_wgmma_keys(const __grid_constant__ TensorMap grad_out, const __grid_constant__ TensorMap q,
                                  const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                                  const float* __restrict__ offsets, Element* __restrict__ out_k,
                                  Element* __restrict__ out_v, int heads, int group, int M, int N, int pitch, int shift,
                                  int window, float scale, float scale_log2, int slices, int section) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Shape shape = {heads, group, M, N, pitch, shift, window};
    const Place place = locate(blockIdx.x, slices, section, cdiv(N, OWN));
    const int kv_heads = heads / group, first_key = place.tile * OWN;
    const Interval seen = queries_of_tile(first_key, OWN, shape);
    const Work work = {place.slice / kv_heads, place.slice % kv_heads, first_key, {seen.first / 8 * 8, seen.end}};
    if (threadIdx.x == 0) {
        barrier_init(shared.own, 1);
        shared.turns.init();
        for (int stage = 0; stage < STAGES; stage++)
            barrier_init(shared.full[stage], 1), barrier_init(shared.empty[stage], 4 * CONSUMERS);
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_previous();  // for the offsets
    let_next_start();  // the queries need nothing of this
    const int warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0) produce(shared, grad_out, q, k, v, offsets, work, shape);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        Consumer consumer{shared, warpgroup - 1, lane, warp};
        consumer.run(work, shape, scale_log2);
        const int row = first_key + 64 * consumer.group + 16 * warp;
        const i64 slice = (i64)place.slice * N * HEAD_DIM;
        store_rows(out_k + slice, consumer.grad_k, scale, row, N);
        store_rows(out_v + slice, consumer.grad_v, 1.0f, row, N);
    }
}
