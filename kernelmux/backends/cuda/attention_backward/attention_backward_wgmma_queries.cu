// grad_q on Hopper's warpgroup products: a block owns queries and walks over the keys that they see, as the forward
// kernel does. The scores' gradients come out of the tensor cores as the left operand of grad_q += ds k; the product of
// one tile runs beside the scores of the next.
#include "attention_backward_shares.cuh"
#include "dependent_launch.cuh"

#ifndef V_STAGES
#define V_STAGES 2
#endif

struct alignas(1024) Shared {
    Panels<OWN> q, grad;
    Panels<TILE> k[STAGES], v[V_STAGES];
    Barrier own, k_full[STAGES], k_empty[STAGES], v_full[V_STAGES], v_empty[V_STAGES];
    Turns turns;
};

struct Work {
    int batch, head, kv_head, first_query;
    Interval keys;  // of several blocks that share them this one takes the first TILE, and then every SHARES-th
};

__device__ __forceinline__ void produce(Shared& shared, const TensorMap& grad_out, const TensorMap& q,
                                        const TensorMap& k, const TensorMap& v, const Work& work) {
    barrier_expect(shared.own, sizeof(shared.q) + sizeof(shared.grad));
    load_panels(shared.q, q, shared.own, work.first_query, work.head, work.batch);
    load_panels(shared.grad, grad_out, shared.own, work.first_query, work.head, work.batch);
    RingPlace<STAGES> k_place;
    RingPlace<V_STAGES> v_place;
    for (int key = work.keys.first; key < work.keys.end; key += SHARES * TILE, k_place.advance(), v_place.advance()) {
        Barrier &k_full = shared.k_full[k_place.stage], &v_full = shared.v_full[v_place.stage];
        barrier_wait(shared.k_empty[k_place.stage], k_place.phase ^ 1);
        barrier_expect(k_full, sizeof(shared.k[0]));
        load_panels(shared.k[k_place.stage], k, k_full, key, work.kv_head, work.batch);
        barrier_wait(shared.v_empty[v_place.stage], v_place.phase ^ 1);
        barrier_expect(v_full, sizeof(shared.v[0]));
        load_panels(shared.v[v_place.stage], v, v_full, key, work.kv_head, work.batch);
    }
}

// One warpgroup's 64 queries.
struct Consumer {
    Shared& shared;
    const int group, lane, warp;
    float grad_q[COLUMN_TILES][4], s[TILE / 8][4], dp[TILE / 8][4], log_sum[2], delta[2];
    unsigned ds[TILE / 16][4];

    // The scores of the keys from `key` on to their gradients; Pending products may stay under way.
    template <int Pending>
    __device__ __forceinline__ void weigh(int v_stage, int key, const Work& work, const Shape& shape,
                                          float scale_log2) {
        const int own = work.first_query + 64 * group, query = own + 16 * warp + lane / 4, column = key + lane % 4 * 2;
        wgmma_wait<Pending + 1>(s);
#pragma unroll
        for (int i = 0; i < TILE / 2; i++)
            s[i / 4][i % 4] = fast_exp2(s[i / 4][i % 4] * scale_log2 - log_sum[i % 4 / 2]);
        wgmma_wait<Pending>(dp);
        barrier_arrive_if(lane == 0, shared.v_empty[v_stage]);
#pragma unroll
        for (int i = 0; i < TILE / 2; i++) dp[i / 4][i % 4] = s[i / 4][i % 4] * (dp[i / 4][i % 4] - delta[i % 4 / 2]);
        if (!all_seen(own, 64, key, TILE, shape))
            mask(dp, 0, keys_of(query, shape), column), mask(dp, 1, keys_of(query + 8, shape), column);
    }

    __device__ __forceinline__ void run(const Work& work, const Shape& shape, const float* offsets, float scale_log2) {
        const bool speaks = lane == 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int query = min(work.first_query + 64 * group + 16 * warp + lane / 4 + 8 * r, shape.pitch - 1);
            log_sum[r] = offsets[query], delta[r] = offsets[shape.pitch + query];
        }
        clear(grad_q);
        shared.turns.begin(group, speaks);
        barrier_wait(shared.own, 0);
        RingPlace<STAGES> k_place;
        RingPlace<V_STAGES> v_place;
        int key = work.keys.first, last = 0;
        unsigned count = 0;
        if (key >= work.keys.end) return;
        auto issue_scores = [&] {
            barrier_wait(shared.k_full[k_place.stage], k_place.phase);
            shared.turns.take(group, count);
            wgmma_fence();
            issue_rows(s, shared.q, group, shared.k[k_place.stage]);
            barrier_wait(shared.v_full[v_place.stage], v_place.phase);
            issue_rows(dp, shared.grad, group, shared.v[v_place.stage]);
        };
        auto next = [&] { last = k_place.stage, key += SHARES * TILE, count++, k_place.advance(), v_place.advance(); };
        issue_scores();
        shared.turns.pass(group, speaks);
        weigh<0>(v_place.stage, key, work, shape, scale_log2);
        pack(ds, dp);
        for (next(); key < work.keys.end; next()) {
            issue_scores();
            issue_columns(grad_q, ds, shared.k[last]);
            shared.turns.pass(group, speaks);
            weigh<1>(v_place.stage, key, work, shape, scale_log2);
            wgmma_wait<0>(grad_q);
            barrier_arrive_if(speaks, shared.k_empty[last]);
            pack(ds, dp);
        }
        issue_columns(grad_q, ds, shared.k[last]);
        wgmma_wait<0>(grad_q);
    }
};

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
    attention_backward_wgmma_queries(const __grid_constant__ TensorMap grad_out, const __grid_constant__ TensorMap q,
                                     const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                                     const float* __restrict__ offsets, Element* __restrict__ out, int heads, int group,
                                     int M, int N, int pitch, int shift, int window, float scale, float scale_log2,
                                     int slices, int section) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Shape shape = {heads, group, M, N, pitch, shift, window};
    const int tiles = cdiv(M, OWN);
    const Place place = locate(blockIdx.x / SHARES, slices, section, tiles);
    const int head = place.slice % heads, first_query = (CAUSAL ? tiles - 1 - place.tile : place.tile) * OWN;
    const Interval seen = keys_of_tile(first_query, OWN, shape);
    const Work work = {place.slice / heads, head, head / group, first_query,
                       {seen.first + share_of_block() * TILE, seen.end}};
    if (threadIdx.x == 0) {
        barrier_init(shared.own, 1);
        shared.turns.init();
        for (int stage = 0; stage < STAGES; stage++)
            barrier_init(shared.k_full[stage], 1), barrier_init(shared.k_empty[stage], 4 * CONSUMERS);
        for (int stage = 0; stage < V_STAGES; stage++)
            barrier_init(shared.v_full[stage], 1), barrier_init(shared.v_empty[stage], 4 * CONSUMERS);
        barrier_init_fence();
    }
    __syncthreads();
    const int warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0) produce(shared, grad_out, q, k, v, work);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        Consumer consumer{shared, warpgroup - 1, lane, warp};
        consumer.run(work, shape, offsets + (i64)place.slice * 2 * pitch, scale_log2);
        const int row = first_query + 64 * consumer.group + 16 * warp;
        out += (i64)place.slice * M * HEAD_DIM;
        if (SHARES == 1) {
            store_rows(out, consumer.grad_q, scale, row, M);
        } else {
            Pieces& pieces = reinterpret_cast<Pieces&>(memory);
            await_warpgroups();
            leave_sums(pieces, consumer.grad_q);
            share_sync();
            add_shares(out, pieces, scale, row, M);
        }
    }
    if (SHARES > 1 && warpgroup == 0) share_sync();
    if (SHARES > 1) share_sync();  // the others have read this block's sums
    wait_for_previous();  // the walk over queries ran beside: the last kernel ends last
}
