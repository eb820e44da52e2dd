// All gradients of attention in one walk over the weights, on Hopper's warpgroup products (Shah et al.,
// FlashAttention-3, 2024). A block owns keys and walks over the queries that see them, as the kernel of keys does:
// weights and their gradients leave the tensor cores as the left operands of grad_v and grad_k. The gradients of the
// scores pass through shared memory once, to both warpgroups, for this block's part of grad_q, which threads beside them
// add to fp32 sums in global memory. ORDERED: blocks add in the order of their keys, so that sums have the same bits each
// time; without it they add as they come. Under a causal mask the order is that from the last keys to the first, and each
// block begins with its first queries: the blocks behind it, which started earlier, have passed them already. That starts the
// longest blocks last. Where heads share keys or are few (LONGEST_FIRST) the order is that of the keys; a block begins with
// the last queries, and takes a tile of all heads before the next: what it shares with the blocks behind it comes first,
// what it has alone last. Blocks that start when no keys are left convert the sums of grad_q. The SHARES blocks of a
// cluster may share a walk, and blocks may add in CHAINS, each to sums of its own.
#include "attention_backward_fused_finish.cuh"
#include "attention_backward_shares.cuh"
#include "dependent_launch.cuh"

#ifndef ORDERED
#define ORDERED 1
#endif
#ifndef LONGEST_FIRST
#define LONGEST_FIRST 0
#endif
#define PARTS 2   // of a warpgroup in shared memory: one may wait for its turn while the next is computed
#define ADDERS 3  // odd, so that each sees parts of both warpgroups in turn
#define REVERSED (ORDERED && CAUSAL && !LONGEST_FIRST)  // blocks start and add from the last keys to the first
#define SHARE (PANELS == 1 ? TILE / CONSUMERS : TILE)  // a warpgroup's queries of grad_q, of one panel of columns
#define PART_TILES (SHARE / 8)                         // of 8 queries and 64 columns

static_assert(CONSUMERS == 2 && SHARE % 8 == 0, "each warpgroup has whole tiles of grad_q");

struct alignas(1024) Shared {
    Panels<OWN> k, v;
    Panels<TILE> q[STAGES], grad[STAGES];
    Element ds[2][CONSUMERS][TILE][64];  // queries by keys, those of a warpgroup in one panel
    float part[PARTS][CONSUMERS][SHARE * 64];
    float log_sums[STAGES][TILE], deltas[STAGES][TILE];
    Barrier k_full, v_full, q_full[STAGES], grad_full[STAGES], empty[STAGES];
    Barrier ds_full[2], ds_empty[2], part_full[ADDERS][CONSUMERS], part_empty[PARTS][CONSUMERS];
    Turns turns;
    int ticket;
};
static_assert(sizeof(FinishShared) <= sizeof(Shared), "blocks that finish need no more shared memory");
static_assert(COLUMN_TILES * 4096 <= sizeof(Panels<OWN>) + STAGES * sizeof(Panels<TILE>),
              "sums lie where keys, values and tiles were");

// The block's keys, and the tiles of queries that see any of them.
struct Work {
    int batch, kv_head, block, share;
    Interval tiles;
    __device__ __forceinline__ int first_key() const { return block * OWN; }
    __device__ __forceinline__ int per_head() const { return max(0, tiles.end - tiles.first); }
    __device__ __forceinline__ int tile_of(int step) const {
        return REVERSED ? tiles.first + step : tiles.end - 1 - step;
    }
    // Tiles of this block in the walk over `group` heads.
    __device__ __forceinline__ int count(int group) const { return shared_out(per_head() * group, share); }
    // Step and head of this block's tile `i`.
    __device__ __forceinline__ int step_of(int i, int group) const {
        i = i * SHARES + share;
        return LONGEST_FIRST ? i / group : i % per_head();
    }
    __device__ __forceinline__ int head_of(int i, int group) const {
        i = i * SHARES + share;
        return LONGEST_FIRST ? i % group : i / per_head();
    }
};

__device__ __forceinline__ void produce(Shared& shared, const TensorMap& grad_out, const TensorMap& q,
                                        const TensorMap& k, const TensorMap& v, const float* offsets, const Work& work,
                                        const Shape& shape) {
    const int count = work.count(shape.group);
    if (count == 0) return;
    barrier_expect(shared.k_full, sizeof(shared.k));
    load_panels(shared.k, k, shared.k_full, work.first_key(), work.kv_head, work.batch);
    RingPlace<STAGES> place;
    for (int i = 0; i < count; i++, place.advance()) {
        const int head = work.kv_head * shape.group + work.head_of(i, shape.group);
        const float* row = offsets + ((i64)work.batch * shape.heads + head) * 2 * shape.pitch;
        const int stage = place.stage, query = work.tile_of(work.step_of(i, shape.group)) * TILE;
        Barrier &q_full = shared.q_full[stage], &grad_full = shared.grad_full[stage];
        barrier_wait(shared.empty[stage], place.phase ^ 1);
        barrier_expect(q_full, sizeof(shared.q[0]) + TILE * 4);
        load_panels(shared.q[stage], q, q_full, query, head, work.batch);
        bulk_load(shared.log_sums[stage], row + query, q_full, TILE * 4);
        if (i == 0) {  // scores need none of it
            barrier_expect(shared.v_full, sizeof(shared.v));
            load_panels(shared.v, v, shared.v_full, work.first_key(), work.kv_head, work.batch);
        }
        barrier_expect(grad_full, sizeof(shared.grad[0]) + TILE * 4);
        load_panels(shared.grad[stage], grad_out, grad_full, query, head, work.batch);
        bulk_load(shared.deltas[stage], row + shape.pitch + query, grad_full, TILE * 4);
    }
}

// How many blocks add to a tile of queries, in this one's chain, before it does.
__device__ __forceinline__ int turn_of(int tile, int block, const Shape& shape) {
    const Interval keys = keys_of_tile(tile * TILE, TILE, shape);
    return (REVERSED ? (keys.end - 1) / OWN - block : block - keys.first / OWN) / CHAINS;
}

// Adds the block's parts of grad_q to the sums of its chain: [CHAINS][slices][PANELS][M / 8][64 * 8]. ADDERS threads
// have the parts, one of a tile and a warpgroup each, in turn: while one sees its part arrive, the next one's may leave.
__device__ __forceinline__ void add_parts(Shared& shared, int adder, float* sums, int* done, const Work& work,
                                          const Shape& shape, i64 slices) {
    const int chain = work.block % CHAINS;
    const int tiles = cdiv(shape.M, TILE), eights = cdiv(shape.M, 8);
    for (int item = adder; item < CONSUMERS * work.count(shape.group); item += ADDERS) {
        const int i = item / CONSUMERS, group = item % CONSUMERS, tile = work.tile_of(work.step_of(i, shape.group));
        const int head = work.kv_head * shape.group + work.head_of(i, shape.group);
        const i64 slice = (i64)work.batch * shape.heads + head;
        int* counter = done + ((slice * tiles + tile) * CHAINS + chain) * CONSUMERS + group;
        const int turn = turn_of(tile, work.block, shape);
        const int first = (tile * TILE + (PANELS == 1 ? group * SHARE : 0)) / 8;
        const int bytes = min(PART_TILES, eights - first) * 64 * 8 * 4;
        float* place = sums + (((chain * slices + slice) * PANELS + (PANELS == 1 ? 0 : group)) * eights + first) * 64 * 8;
        barrier_wait(shared.part_full[adder][group], item / (ADDERS * CONSUMERS) & 1);
        if (ORDERED) await(counter, turn);
        if (bytes > 0) {
            if (ORDERED && turn == 0)
                bulk_store(place, shared.part[i % PARTS][group], bytes);
            else
                bulk_add(place, shared.part[i % PARTS][group], bytes);
        }
        bulk_wait_read();
        barrier_arrive_if(true, shared.part_empty[i % PARTS][group]);
        bulk_wait_done(), release_one(counter);
    }
}

// One warpgroup's 64 keys.
struct Consumer {
    Shared& shared;
    const int group, lane, warp;
    float grad_k[COLUMN_TILES][4], grad_v[COLUMN_TILES][4], s[TILE / 8][4], dp[TILE / 8][4], part[PART_TILES][4];
    unsigned p[TILE / 16][4], ds[TILE / 16][4];

    // What belongs to the columns of a lane's pair of scores.
    __device__ __forceinline__ float2 offset(const float (&offsets)[TILE], int i) const {
        return *reinterpret_cast<const float2*>(&offsets[8 * i + lane % 4 * 2]);
    }

    // Scores to weights.
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

    // Gradients of weights to those of scores.
    __device__ __forceinline__ void differentiate(int stage) {
#pragma unroll
        for (int i = 0; i < TILE / 8; i++) {
            const float2 delta = offset(shared.deltas[stage], i);
#pragma unroll
            for (int r = 0; r < 4; r += 2) {
                dp[i][r] = s[i][r] * (dp[i][r] - delta.x);
                dp[i][r + 1] = s[i][r + 1] * (dp[i][r + 1] - delta.y);
            }
        }
    }

    __device__ __forceinline__ void mask_border(float (&x)[TILE / 8][4], int query, const Work& work,
                                                const Shape& shape) {
        const int own = work.first_key() + 64 * group, key = own + 16 * warp + lane / 4, column = query + lane % 4 * 2;
        if (all_seen(query, TILE, own, 64, shape)) return;
        mask(x, 0, queries_of(key, shape), column), mask(x, 1, queries_of(key + 8, shape), column);
    }

    // Tiles take the two buffers in turn; tile -1 gives zeros, so that each tile is followed by the part of the last.
    static __device__ __forceinline__ unsigned phase(int tile) { return (tile + 1) / 2 & 1; }

    __device__ __forceinline__ void shared_gradients(int tile) {
        shared_proxy_fence();
        __syncwarp();
        barrier_arrive_if(lane == 0, shared.ds_full[tile & 1]);
    }

    __device__ __forceinline__ void share_zeros() {
        uint4* to = reinterpret_cast<uint4*>(shared.ds[1][group]);
#pragma unroll
        for (int i = threadIdx.x % 128; i < TILE * 8; i += 128) to[i] = make_uint4(0, 0, 0, 0);
        shared_gradients(-1);
    }

    // The scores' gradients to shared memory, transposed: lane l names row l % 8 of matrix l / 8 of four.
    __device__ __forceinline__ void share_gradients(int tile) {
        barrier_wait(shared.ds_empty[tile & 1], phase(tile) ^ 1);
#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {
            const int query = 16 * n + lane / 16 * 8 + lane % 8, chunk = (2 * warp + lane / 8 % 2) ^ (lane % 8);
            store_transposed(&shared.ds[tile & 1][group][query][8 * chunk], ds[n]);
        }
        shared_gradients(tile);
    }

    // part = (ds k)^T, of a panel of grad_q's columns and this warpgroup's queries.
    __device__ __forceinline__ void issue_part(int tile) {
        const int query = PANELS == 1 ? group * SHARE : 0, panel = PANELS == 1 ? 0 : group;
        barrier_wait(shared.ds_full[tile & 1], phase(tile));
        forget(part);
        wgmma_fence();
#pragma unroll
        for (int key = 0; key < OWN; key += 16)
            wgmma<false, true>(part, product_descriptor(shared.k[panel], OWN * 128, key * 128),
                               product_descriptor(shared.ds[tile & 1][0][query], 0,
                                                 key / 64 * sizeof(shared.ds[0][0]) + key % 64 * 2),
                               key != 0, Element());
        wgmma_commit();
    }

    __device__ __forceinline__ void hand_over_part(int i) {
        barrier_wait(shared.part_empty[i % PARTS][group], i / PARTS & 1 ^ 1);
        float4* to = reinterpret_cast<float4*>(shared.part[i % PARTS][group]) + threadIdx.x % 128;
#pragma unroll
        for (int j = 0; j < PART_TILES; j++) to[128 * j] = make_float4(part[j][0], part[j][1], part[j][2], part[j][3]);
        shared_proxy_fence();
        __syncwarp();
        barrier_arrive_if(lane == 0, shared.part_full[(i * CONSUMERS + group) % ADDERS][group]);
    }

    __device__ __forceinline__ void issue_scores(int stage) {
        forget(s);
        wgmma_fence();
        issue_rows(s, shared.k, group, shared.q[stage]);
    }

    __device__ __forceinline__ void issue_gradients(RingPlace<STAGES> place) {
        barrier_wait(shared.grad_full[place.stage], place.phase);
        forget(dp);
        wgmma_fence();
        issue_rows(dp, shared.v, group, shared.grad[place.stage]);
    }

    // The scores of the queries from `query` on to weights, and these to gradients of the scores.
    __device__ __forceinline__ void weigh(int stage, int query, const Work& work, const Shape& shape,
                                          float scale_log2) {
        exponentials(stage, scale_log2);
        mask_border(s, query, work, shape);
        wgmma_wait<0>(dp);
        differentiate(stage);
        mask_border(dp, query, work, shape);
        pack(p, s), pack(ds, dp);
    }

    // Pending products may stay under way.
    template <int Pending>
    __device__ __forceinline__ void end_part(int tile) {
        wgmma_wait<Pending>(part);
        barrier_arrive_if(lane == 0, shared.ds_empty[tile & 1]);
        if (tile >= 0) hand_over_part(tile);
    }

    // On by so many tiles.
    static __device__ __forceinline__ void follow(int& step, int& head, int by, const Work& work, const Shape& shape) {
        (LONGEST_FIRST ? head : step) += by;
        if (LONGEST_FIRST)
            for (; head >= shape.group; step++) head -= shape.group;
        else if (SHARES == 1)
            step = step < work.per_head() ? step : 0;  // of the next head
        else
            while (step >= work.per_head()) step -= work.per_head();
    }

    __device__ __forceinline__ void run(const Work& work, const Shape& shape, float scale_log2) {
        const bool speaks = lane == 0;
        const int count = work.count(shape.group);
        clear(grad_k), clear(grad_v);
        if (count == 0) return;
        share_zeros();
        shared.turns.begin(group, speaks);
        barrier_wait(shared.k_full, 0);
        RingPlace<STAGES> place;
        int step = 0, head = 0;
        follow(step, head, work.share, work, shape);
        barrier_wait(shared.q_full[0], 0);
        issue_scores(0);
        barrier_wait(shared.v_full, 0);
        for (int i = 0; i < count; i++) {
            const int stage = place.stage;
            wgmma_wait<0>(s);
            issue_gradients(place);
            weigh(stage, work.tile_of(step) * TILE, work, shape, scale_log2);
            shared.turns.take(group, i);
            issue_columns(grad_v, p, shared.grad[stage]);
            issue_columns(grad_k, ds, shared.q[stage]);
            share_gradients(i);
            issue_part(i - 1);
            wgmma_wait<1>(grad_k), pin(grad_v);
            barrier_arrive_if(speaks, shared.empty[stage]);
            if (i + 1 < count) {
                place.advance();
                barrier_wait(shared.q_full[place.stage], place.phase);
            }
            issue_scores(place.stage);  // of the next tile; behind the last one nothing reads them
            shared.turns.pass(group, speaks);
            end_part<1>(i - 1);
            follow(step, head, SHARES, work, shape);
        }
        wgmma_wait<0>(s);
        issue_part(count - 1);
        end_part<0>(count - 1);
    }
};

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
    attention_backward_fused(const __grid_constant__ TensorMap grad_out, const __grid_constant__ TensorMap q,
                             const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                             const float* __restrict__ offsets, float* __restrict__ sums, int* __restrict__ done,
                             Element* __restrict__ out_q, Element* __restrict__ out_k, Element* __restrict__ out_v,
                             int heads, int group, int M, int N, int pitch, int shift, int window, float scale,
                             float scale_log2, int slices, int section) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Shape shape = {heads, group, M, N, pitch, shift, window};
    if (threadIdx.x == 0) {
        barrier_init(shared.k_full, 1), barrier_init(shared.v_full, 1);
        for (int stage = 0; stage < STAGES; stage++)
            barrier_init(shared.q_full[stage], 1), barrier_init(shared.grad_full[stage], 1),
                barrier_init(shared.empty[stage], 4 * CONSUMERS);
        for (int i = 0; i < 2; i++)
            barrier_init(shared.ds_full[i], 4 * CONSUMERS), barrier_init(shared.ds_empty[i], 4 * CONSUMERS);
        for (int i = 0; i < ADDERS; i++)
            for (int group = 0; group < CONSUMERS; group++) barrier_init(shared.part_full[i][group], 4);
        for (int i = 0; i < PARTS; i++)
            for (int group = 0; group < CONSUMERS; group++) barrier_init(shared.part_empty[i][group], 1);
        shared.turns.init();
        barrier_init_fence();
        wait_for_previous();  // for the offsets, and for counters that are zero
        // Blocks take their work in the order in which they start: each waits only for some that run already.
        if (share_of_block() == 0)
            shared.ticket = atomicAdd(done + (i64)slices * group * cdiv(M, TILE) * CHAINS * CONSUMERS, 1);
    }
    share_sync();
    const int share = share_of_block(), ticket = of_first_share(shared.ticket);
    const int blocks = cdiv(N, OWN), kv_heads = heads / group, unit = ticket - blocks * slices;
    if (__builtin_expect(unit < 0, 1)) {  // first in the code: the emulator prefers what comes first to what waits
        const auto locate_block = [&] { return locate(of_first_share(shared.ticket), slices, section, blocks); };
        const Place place = locate_block();
        const int block = REVERSED ? blocks - 1 - place.tile : place.tile;
        const Interval seen = queries_of_tile(block * OWN, OWN, shape);
        const Work work = {place.slice / kv_heads, place.slice % kv_heads, block, share,
                           {seen.first / TILE, seen.end > seen.first ? cdiv(seen.end, TILE) : 0}};
        const int warpgroup = warpgroup_index();
        if (__builtin_expect(warpgroup > 0, 1)) {  // for the emulator again
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
            const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
            Consumer consumer{shared, warpgroup - 1, lane, warp};
            consumer.run(work, shape, scale_log2);
            const int row = work.first_key() + 64 * consumer.group + 16 * warp;
            const i64 slice = (i64)locate_block().slice * N * HEAD_DIM;  // again: no register holds it through the walk
            if (SHARES == 1) {
                store_rows(out_k + slice, consumer.grad_k, scale, row, N);
                store_rows(out_v + slice, consumer.grad_v, 1.0f, row, N);
            } else {
                auto& pieces = reinterpret_cast<float4(&)[2][COLUMN_TILES][256]>(memory);
                await_warpgroups();
                leave_sums(pieces[0], consumer.grad_k), leave_sums(pieces[1], consumer.grad_v);
                share_sync();
                add_shares(out_k + slice, pieces[0], scale, row, N), add_shares(out_v + slice, pieces[1], 1.0f, row, N);
            }
        } else {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
            if (threadIdx.x == 0) produce(shared, grad_out, q, k, v, offsets, work, shape);
            const int adder = threadIdx.x / 32 - 1;
            if (threadIdx.x % 32 == 0 && adder >= 0) add_parts(shared, adder, sums, done, work, shape, (i64)slices * group);
            if (SHARES > 1) share_sync();
        }
        if (SHARES > 1) share_sync();  // the others have read this block's sums
    } else {
        share_sync();  // the ticket has been read
        const int mine = unit * SHARES + share;
        if (SHARES == 1 || mine < slices * group * cdiv(M, FINISH_QUERIES))
            finish(*reinterpret_cast<FinishShared*>(memory), sums, done, out_q, mine, scale, shape, (i64)slices * group);
    }
}
