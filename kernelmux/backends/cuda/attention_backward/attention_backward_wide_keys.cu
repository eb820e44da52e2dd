// grad_k and grad_v of wide heads on Hopper's warpgroup products: a block owns 64 keys and walks over the queries of all
// heads that share them. A sum of 64 rows by up to 256 columns fills half of a warpgroup's registers, so each of two
// warpgroups has one: the first computes the scores, the weights p and grad_v += p^T grad_out, the second the gradients of
// the weights, those of the scores and grad_k += ds^T q. The weights pass from the first to the second in shared memory.
#include "attention_backward_shares.cuh"
#include "dependent_launch.cuh"

#define KEYS 64  // of a block

struct alignas(1024) Shared {
    Panels<KEYS> k, v;
    Panels<TILE> q[STAGES], grad[STAGES];
    float4 weights[TILE / 8][128];
    float log_sums[STAGES][TILE], deltas[STAGES][TILE];
    Barrier k_full, v_full, q_full[STAGES], q_empty[STAGES], grad_full[STAGES], grad_empty[STAGES];
    Barrier weights_full, weights_empty;
};

// The block's keys, and the queries that see any of them, from a multiple of 8 on: of their
// offsets copies want whole 16 bytes.
struct Work {
    int batch, kv_head, first_key, share;
    Interval queries;
    __device__ __forceinline__ int per_head() const { return max(0, cdiv(queries.end - queries.first, TILE)); }
    // Tiles of this block in the walk over `group` heads, and the first query of each head's tiles in turn.
    __device__ __forceinline__ int count(int group) const { return shared_out(per_head() * group, share); }
    __device__ __forceinline__ int behind(int query, int tiles) const {
        for (query += tiles * TILE; query >= queries.end; query -= per_head() * TILE)
            if (SHARES == 1) return queries.first;
        return query;
    }
};

__device__ __forceinline__ void produce(Shared& shared, const TensorMap& grad_out, const TensorMap& q,
                                        const TensorMap& k, const TensorMap& v, const float* offsets, const Work& work,
                                        const Shape& shape) {
    const int count = work.count(shape.group);
    if (count == 0) return;
    barrier_expect(shared.k_full, sizeof(shared.k));
    load_panels(shared.k, k, shared.k_full, work.first_key, work.kv_head, work.batch);
    RingPlace<STAGES> place;
    for (int i = 0; i < count; i++, place.advance()) {
        const int tile = i * SHARES + work.share, head = work.kv_head * shape.group + tile / work.per_head();
        const int stage = place.stage, query = work.queries.first + tile % work.per_head() * TILE;
        const float* row = offsets + ((i64)work.batch * shape.heads + head) * 2 * shape.pitch;
        Barrier &q_full = shared.q_full[stage], &grad_full = shared.grad_full[stage];
        barrier_wait(shared.q_empty[stage], place.phase ^ 1);
        barrier_expect(q_full, sizeof(shared.q[0]) + TILE * 4);
        load_panels(shared.q[stage], q, q_full, query, head, work.batch);
        bulk_load(shared.log_sums[stage], row + query, q_full, TILE * 4);
        if (i == 0) {  // scores need none of it
            barrier_expect(shared.v_full, sizeof(shared.v));
            load_panels(shared.v, v, shared.v_full, work.first_key, work.kv_head, work.batch);
        }
        barrier_wait(shared.grad_empty[stage], place.phase ^ 1);
        barrier_expect(grad_full, sizeof(shared.grad[0]) + TILE * 4);
        load_panels(shared.grad[stage], grad_out, grad_full, query, head, work.batch);
        bulk_load(shared.deltas[stage], row + shape.pitch + query, grad_full, TILE * 4);
    }
}

// d = own tile^T, in flight on return. [64, HEAD_DIM] x [TILE, HEAD_DIM]^T
__device__ __forceinline__ void issue_scores(float (&d)[TILE / 8][4], const Panels<KEYS>& own, const Panels<TILE>& tile) {
    forget(d);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < HEAD_DIM; c += 16)
        wgmma<true, true>(d, product_descriptor(own, 0, c / 64 * sizeof(own[0]) + c % 64 * 2),
                          product_descriptor(tile, 0, c / 64 * sizeof(tile[0]) + c % 64 * 2), c != 0, Element());
    wgmma_commit();
}

// What both warpgroups are: 64 keys, one sum.
struct Consumer {
    Shared& shared;
    const int lane, warp;
    float sum[COLUMN_TILES][4], s[TILE / 8][4];
    unsigned packed[TILE / 16][4];

    // What belongs to the columns of a lane's pair of scores.
    __device__ __forceinline__ float2 offset(const float (&offsets)[TILE], int i) const {
        return *reinterpret_cast<const float2*>(&offsets[8 * i + lane % 4 * 2]);
    }

    __device__ __forceinline__ void mask_border(int query, const Work& work, const Shape& shape) {
        const int key = work.first_key + 16 * warp + lane / 4, column = query + lane % 4 * 2;
        if (all_seen(query, TILE, work.first_key, KEYS, shape)) return;
        mask(s, 0, queries_of(key, shape), column), mask(s, 1, queries_of(key + 8, shape), column);
    }

    __device__ __forceinline__ void exponentials(int stage, float scale_log2) {
#pragma unroll
        for (int i = 0; i < TILE / 8; i++) {
            const float2 log_sum = offset(shared.log_sums[stage], i);
#pragma unroll
            for (int r = 0; r < 4; r += 2) {
                s[i][r] = fast_exp2(s[i][r] * scale_log2 - log_sum.x);
                s[i][r + 1] = fast_exp2(s[i][r + 1] * scale_log2 - log_sum.y);
            }
        }
    }

    __device__ __forceinline__ void send_weights() {
#pragma unroll
        for (int i = 0; i < TILE / 8; i++)
            shared.weights[i][threadIdx.x % 128] = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
        __syncwarp();
        barrier_arrive_if(lane == 0, shared.weights_full);
    }

    // Gradients of weights to those of scores.
    __device__ __forceinline__ void differentiate(int stage) {
#pragma unroll
        for (int i = 0; i < TILE / 8; i++) {
            const float2 delta = offset(shared.deltas[stage], i);
            const float4 weight = shared.weights[i][threadIdx.x % 128];
            s[i][0] = weight.x * (s[i][0] - delta.x), s[i][1] = weight.y * (s[i][1] - delta.y);
            s[i][2] = weight.z * (s[i][2] - delta.x), s[i][3] = weight.w * (s[i][3] - delta.y);
        }
        __syncwarp();
        barrier_arrive_if(lane == 0, shared.weights_empty);
    }

    __device__ __forceinline__ void sum_up(const Panels<TILE>& tile) {
        pack(packed, s);
        issue_columns(sum, packed, tile);
    }

    // The products of a tile are issued before those of the last are awaited, but for the one behind the last tile, whose
    // scores that nothing reads: the compiler then keeps the sums where they are.

    // grad_v
    __device__ __forceinline__ void run_weights(const Work& work, const Shape& shape, float scale_log2) {
        const int count = work.count(shape.group);
        clear(sum);
        if (count == 0) return;
        barrier_wait(shared.k_full, 0);
        RingPlace<STAGES> place;
        int query = work.behind(work.queries.first, work.share);
        barrier_wait(shared.q_full[0], 0);
        issue_scores(s, shared.k, shared.q[0]);
        for (int tile = 0; tile < count; tile++) {
            const int stage = place.stage;
            wgmma_wait<0>(s);
            exponentials(stage, scale_log2);
            barrier_arrive_if(lane == 0, shared.q_empty[stage]);
            mask_border(query, work, shape);
            barrier_wait(shared.weights_empty, tile & 1 ^ 1);
            send_weights();
            barrier_wait(shared.grad_full[stage], place.phase);
            sum_up(shared.grad[stage]);
            if (tile + 1 < count) {
                place.advance();
                barrier_wait(shared.q_full[place.stage], place.phase);
            }
            issue_scores(s, shared.k, shared.q[place.stage]);
            wgmma_wait<1>(sum);
            barrier_arrive_if(lane == 0, shared.grad_empty[stage]);
            query = work.behind(query, SHARES);
        }
        wgmma_wait<0>(s);
    }

    // grad_k
    __device__ __forceinline__ void run_gradients(const Work& work, const Shape& shape) {
        const int count = work.count(shape.group);
        clear(sum);
        if (count == 0) return;
        barrier_wait(shared.v_full, 0);
        RingPlace<STAGES> place;
        int query = work.behind(work.queries.first, work.share);
        barrier_wait(shared.grad_full[0], 0);
        issue_scores(s, shared.v, shared.grad[0]);
        for (int tile = 0; tile < count; tile++) {
            const int stage = place.stage;
            wgmma_wait<0>(s);
            barrier_wait(shared.weights_full, tile & 1);
            differentiate(stage);
            barrier_arrive_if(lane == 0, shared.grad_empty[stage]);
            mask_border(query, work, shape);
            barrier_wait(shared.q_full[stage], place.phase);
            sum_up(shared.q[stage]);
            if (tile + 1 < count) {
                place.advance();
                barrier_wait(shared.grad_full[place.stage], place.phase);
            }
            issue_scores(s, shared.v, shared.grad[place.stage]);
            wgmma_wait<1>(sum);
            barrier_arrive_if(lane == 0, shared.q_empty[stage]);
            query = work.behind(query, SHARES);
        }
        wgmma_wait<0>(s);
    }
};

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
    attention_backward_wide_keys(const __grid_constant__ TensorMap grad_out, const __grid_constant__ TensorMap q,
                                 const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                                 const float* __restrict__ offsets, Element* __restrict__ out_k,
                                 Element* __restrict__ out_v, int heads, int group, int M, int N, int pitch, int shift,
                                 int window, float scale, float scale_log2, int slices, int section) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Shape shape = {heads, group, M, N, pitch, shift, window};
    const Place place = locate(blockIdx.x / SHARES, slices, section, cdiv(N, KEYS));
    const int kv_heads = heads / group, first_key = place.tile * KEYS;
    const Interval seen = queries_of_tile(first_key, KEYS, shape);
    const Work work = {place.slice / kv_heads, place.slice % kv_heads, first_key, share_of_block(),
                       {seen.first / 8 * 8, seen.end}};
    if (threadIdx.x == 0) {
        barrier_init(shared.k_full, 1), barrier_init(shared.v_full, 1);
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(shared.q_full[stage], 1), barrier_init(shared.q_empty[stage], 8);
            barrier_init(shared.grad_full[stage], 1), barrier_init(shared.grad_empty[stage], 8);
        }
        barrier_init(shared.weights_full, 4), barrier_init(shared.weights_empty, 4);
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_previous();  // for the offsets
    let_next_start();  // the queries need nothing of this
    const int warpgroup = warpgroup_index();
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0) produce(shared, grad_out, q, k, v, offsets, work, shape);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = first_key + 16 * warp;
        const i64 slice = (i64)place.slice * N * HEAD_DIM;
        Consumer consumer{shared, lane, warp};
        auto finish = [&](Element* out, float factor) {
            if (SHARES == 1) {
                store_rows(out + slice, consumer.sum, factor, row, N);
                return;
            }
            Pieces& pieces = reinterpret_cast<Pieces&>(memory);
            await_warpgroups();
            leave_sums(pieces, consumer.sum);
            share_sync();
            add_shares(out + slice, pieces, factor, row, N);
        };
        if (warpgroup == 1) {
            consumer.run_weights(work, shape, scale_log2);
            finish(out_v, 1.0f);
        } else {
            consumer.run_gradients(work, shape);
            finish(out_k, scale);
        }
    }
    if (SHARES > 1 && warpgroup == 0) share_sync();
    if (SHARES > 1) share_sync();  // the others have read this block's sums
}
