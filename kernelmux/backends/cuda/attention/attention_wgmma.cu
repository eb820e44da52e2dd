// attention on Hopper's warpgroup products. One thread feeds K and V tiles into a ring of STAGES through TMA; CONSUMERS
// warpgroups own 64 query rows each. While the tensor cores add the values of tile t, a warpgroup's other units do the
// softmax of t + 1; the turns let the groups' softmax phases alternate. Blocks are persistent: the next queries and keys
// travel while the last output is stored.
#define SLACK 2  // more would cost digits of lse
#include "attention.cuh"
#include "attention_wgmma.cuh"
#include "attention_works.cuh"

#ifndef STAGES
#define STAGES 2
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif

#define THREADS (128 * (CONSUMERS + 1))
#define PRODUCER_REGISTERS (CONSUMERS == 3 ? 32 : 24)  // of 65,536: what the consumers leave
#define CONSUMER_REGISTERS (CONSUMERS == 3 ? 160 : 240)
#define PANELS ((HEAD_DIM + 63) / 64)  // a TMA box of the 128-byte swizzle is 64 elements wide, zeros past HEAD_DIM
#define KEY_TILES (BLOCK_N / 8)
// Of sums; three warpgroups have no registers for columns of zeros.
#define OUT_TILES (CONSUMERS == 3 && HEAD_DIM > 96 ? HEAD_DIM / 8 : (HEAD_DIM + 15) / 16 * 2)

#define NAMES_104 FIFTY "%50, %51"
#define NAMES_120 FIFTY "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59"
#define SUMS_104 SUMS_96, FOUR_SUMS(12)
#define SUMS_120 SUMS_112, FOUR_SUMS(14)
REGISTER_PRODUCT(104, "f16", __half, 52, 53, 54, 55, 56)
REGISTER_PRODUCT(120, "f16", __half, 60, 61, 62, 63, 64)
REGISTER_PRODUCT(104, "bf16", __nv_bfloat16, 52, 53, 54, 55, 56)
REGISTER_PRODUCT(120, "bf16", __nv_bfloat16, 60, 61, 62, 63, 64)

static_assert(BLOCK_M == 64 * CONSUMERS, "a warpgroup product has 64 rows");

// What has arrived (full) and what all consumer warps have read (empty), stage by stage.
struct Ring {
    Barrier full[STAGES], empty[STAGES];
};

struct alignas(1024) Shared {
    Element q[PANELS][BLOCK_M][64];
    Element k[STAGES][PANELS][BLOCK_N][64];
    Element v[STAGES][PANELS][BLOCK_N][64];
    Ring keys, values;
    Barrier queries_full, queries_empty, turn[CONSUMERS];
};

__device__ __forceinline__ void init_barriers(Shared& shared) {
    for (int stage = 0; stage < STAGES; stage++) {
        barrier_init(shared.keys.full[stage], 1), barrier_init(shared.keys.empty[stage], 4 * CONSUMERS);
        barrier_init(shared.values.full[stage], 1), barrier_init(shared.values.empty[stage], 4 * CONSUMERS);
    }
    barrier_init(shared.queries_full, 1), barrier_init(shared.queries_empty, 4 * CONSUMERS);
    for (int group = 0; group < CONSUMERS; group++) barrier_init(shared.turn[group], 4);
    barrier_init_fence();
}

// Stage and parity of the tile number `count` of a block's life.
__device__ __forceinline__ unsigned stage_of(unsigned count) { return count % STAGES; }
__device__ __forceinline__ unsigned parity_of(unsigned count) { return count / STAGES & 1; }

template <int ROWS>
__device__ __forceinline__ void load_panels(Element (&tile)[PANELS][ROWS][64], const TensorMap& map, Barrier& barrier,
                                            int row, int head, int batch) {
    barrier_expect(barrier, sizeof(tile));
    for (int panel = 0; panel < PANELS; panel++) tma_load(tile[panel], map, barrier, 64 * panel, row, head, batch);
}

__device__ __forceinline__ void produce(Shared& shared, const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                        const Shape& shape, int works) {
    unsigned count = 0;
    for (int wave = 0; work_index(wave) < works; wave++) {
        const Place place = locate(work_index(wave), shape);
        for (int row = place.first_key, end = end_of(place); row < end; row += BLOCK_N, count++) {
            const unsigned stage = stage_of(count), parity = parity_of(count) ^ 1;
            barrier_wait(shared.keys.empty[stage], parity);
            load_panels(shared.k[stage], k, shared.keys.full[stage], row, place.kv_head, place.batch);
            if (row == place.first_key) {
                barrier_wait(shared.queries_empty, wave & 1 ^ 1);
                load_panels(shared.q, q, shared.queries_full, place.first_row, place.head, place.batch);
            }
            barrier_wait(shared.values.empty[stage], parity);
            load_panels(shared.v[stage], v, shared.values.full[stage], row, place.kv_head, place.batch);
        }
    }
}

// One warpgroup's 64 rows. `count` is the number of the key tile whose scores come next, over all works.
struct Consumer {
    Shared& shared;
    const int group, lane, warp;
    unsigned count = 0;
    float o[OUT_TILES][4];
    RowPair rows;

    __device__ __forceinline__ void release(Barrier& barrier) { barrier_arrive_if(lane == 0, barrier); }

    // Until the keys of tile `count` are there.
    __device__ __forceinline__ void await_keys() {
        barrier_wait(shared.keys.full[stage_of(count)], parity_of(count));
    }

    // s = Q K^T of tile `count`, in flight on return. [64, HEAD_DIM] x [BLOCK_N, HEAD_DIM]^T
    __device__ __forceinline__ void issue_scores(float (&s)[KEY_TILES][4]) {
        multiply_keys(s, shared.q, shared.k[stage_of(count)], 64 * group);
    }

    // o += P V of the tile before `count`, in flight on return. [64, BLOCK_N] x [BLOCK_N, HEAD_DIM]
    __device__ __forceinline__ void issue_values(unsigned (&p)[BLOCK_N / 16][4]) {
        const unsigned stage = stage_of(count - 1);
        barrier_wait(shared.values.full[stage], parity_of(count - 1));
        multiply_values(o, p, shared.v[stage]);
    }

    __device__ __forceinline__ void take_turn() {
        barrier_wait(shared.turn[group], count & 1);
    }
    __device__ __forceinline__ void pass_turn() {
        release(shared.turn[(group + 1) % CONSUMERS]);
    }

    // The scores of tile `count` have been read; after the last ones the queries may go too.
    __device__ __forceinline__ void release_scores(bool last) {
        release(shared.keys.empty[stage_of(count)]);
        barrier_arrive_if(last && lane == 0, shared.queries_empty);
        count++;
    }

    // Scores to probabilities of the tile that starts at `key`; `decay` is what the earlier output shrinks by.
    __device__ __forceinline__ void softmax(float (&s)[KEY_TILES][4], int key, const Place& place, const Shape& shape,
                                            float scale, float (&decay)[2]) {
        const int row = place.first_row + 64 * group + 16 * warp, shift = shape.shift, N = shape.N,
                  window = shape.window;
        if (needs_mask(key, row, shift, N, window))
            mask_scores(s, key + lane % 4 * 2, row + lane / 4, shift, N, window);
        rows.update(s, scale, decay);
    }

    __device__ __forceinline__ void run(const Place& place, unsigned query_parity, const Shape& shape, float scale) {
        const int end = end_of(place);
        float s[KEY_TILES][4], decay[2];
        unsigned p[BLOCK_N / 16][4];
        rows = RowPair();
#pragma unroll
        for (int i = 0; i < 4 * OUT_TILES; i++) o[i / 4][i % 4] = 0.0f;
        barrier_wait(shared.queries_full, query_parity);
        await_keys();
        take_turn();
        issue_scores(s);
        pass_turn();
        wgmma_wait<0>(s);
        release_scores(end - place.first_key <= BLOCK_N);
        softmax(s, place.first_key, place, shape, scale, decay);
        pack_rows(p, s);
        if (end - place.first_key > BLOCK_N) await_keys();
        for (int key = place.first_key + BLOCK_N; key < end; key += BLOCK_N) {
            const bool last = key + BLOCK_N >= end;
            take_turn();
            issue_scores(s);
            issue_values(p);
            pass_turn();
            wgmma_wait<1>(s);
            release_scores(last);
            softmax(s, key, place, shape, scale, decay);
            // ptxas moves the wait for the sums up to the last branch, in front of the exponentials that are to run
            // while the products do. So a branch that is needed anyway stands between the two.
            pin(s);
            if (!last) await_keys();
            wgmma_wait<0>(o);
            release(shared.values.empty[stage_of(count - 2)]);
            if (__any_sync(0xffffffffu, decay[0] != 1.0f || decay[1] != 1.0f)) scale_rows(o, decay);
            pack_rows(p, s);
        }
        issue_values(p);
        wgmma_wait<0>(o);
        release(shared.values.empty[stage_of(count - 1)]);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, Element* __restrict__ out, float* __restrict__ lse, int slices,
                    int section, int heads, int group, int M, int N, int shift, int window, float scale_log2,
                    int works) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Shape shape = {slices, section, heads, group, M, N, shift, window};
    const int warpgroup = warpgroup_index();
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0) produce(shared, q, k, v, shape, works);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        Consumer consumer{shared, warpgroup - 1, lane, warp};
        barrier_arrive_if(warpgroup == CONSUMERS && lane == 0, shared.turn[0]);  // group 0 begins
        for (int wave = 0; work_index(wave) < works; wave++) {
            const Place place = locate(work_index(wave), shape);
            consumer.run(place, wave & 1, shape, scale_log2);
            const int row = place.first_row + 64 * consumer.group + 16 * warp;
            store_rows(out + (i64)place.slice * M * HEAD_DIM, consumer.o, consumer.rows, row, M);
            store_logs(lse + (i64)place.slice * M, consumer.rows, row, M, scale_log2);
        }
    }
}
