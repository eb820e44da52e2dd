// attention on Hopper's warpgroup products. One thread feeds K and V tiles into a ring of STAGES through TMA; CONSUMERS
// warpgroups own 64 query rows each. While the tensor cores compute the scores of tile t + 1 and add the values of tile
// t, a warpgroup's other units do the softmax of t + 1; the turns let the groups' softmax phases alternate.
#include "attention.cuh"
#include "attention_wgmma.cuh"

#ifndef STAGES
#define STAGES 2
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef TURNS
#define TURNS 1
#endif

#define THREADS (128 * (CONSUMERS + 1))
#define PRODUCER_REGISTERS (CONSUMERS == 2 ? 24 : 32)   // of 65,536: what the consumers leave
#define CONSUMER_REGISTERS (CONSUMERS == 2 ? 240 : 160)
#define PANELS (HEAD_DIM / 64)  // a TMA box of the 128-byte swizzle is 64 elements wide
#define KEY_TILES (BLOCK_N / 8)
#define OUT_TILES (HEAD_DIM / 8)

static_assert(BLOCK_M == 64 * CONSUMERS, "a warpgroup product has 64 rows");

using Products = Warpgroup<Element>;

// What has arrived (full) and what all consumer warps have read (empty), stage by stage.
struct Ring {
    Barrier full[STAGES], empty[STAGES];
};

struct alignas(1024) Shared {
    Element q[PANELS][BLOCK_M][64];
    Element k[STAGES][PANELS][BLOCK_N][64];
    Element v[STAGES][PANELS][BLOCK_N][64];
    Ring keys, values;
    Barrier queries, turn[CONSUMERS];
};

__device__ __forceinline__ void init_barriers(Shared& shared) {
    for (int stage = 0; stage < STAGES; stage++) {
        barrier_init(shared.keys.full[stage], 1), barrier_init(shared.keys.empty[stage], 4 * CONSUMERS);
        barrier_init(shared.values.full[stage], 1), barrier_init(shared.values.empty[stage], 4 * CONSUMERS);
    }
    barrier_init(shared.queries, 1);
    for (int group = 0; group < CONSUMERS; group++) barrier_init(shared.turn[group], 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

template <int ROWS>
__device__ __forceinline__ void load_panels(Element (&tile)[PANELS][ROWS][64], const TensorMap& map, Barrier& barrier,
                                            int row, int head, int batch) {
    barrier_expect(barrier, sizeof(tile));
    for (int panel = 0; panel < PANELS; panel++) tma_load(tile[panel], map, barrier, 64 * panel, row, head, batch);
}

__device__ __forceinline__ void produce(Shared& shared, const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                        const Place& place, int tiles) {
    load_panels(shared.q, q, shared.queries, place.first_row, place.head, place.batch);
    for (int tile = 0; tile < tiles; tile++) {
        const int stage = tile % STAGES, parity = (tile / STAGES & 1) ^ 1, row = tile * BLOCK_N;
        barrier_wait(shared.keys.empty[stage], parity);
        load_panels(shared.k[stage], k, shared.keys.full[stage], row, place.kv_head, place.batch);
        barrier_wait(shared.values.empty[stage], parity);
        load_panels(shared.v[stage], v, shared.values.full[stage], row, place.kv_head, place.batch);
    }
}

// One warpgroup's 64 rows.
struct Consumer {
    Shared& shared;
    const int group, lane, warp;
    float o[OUT_TILES][4] = {};
    RowPair rows;

    // s = Q K^T, in flight on return. [64, HEAD_DIM] x [BLOCK_N, HEAD_DIM]^T
    __device__ __forceinline__ void issue_scores(float (&s)[KEY_TILES][4], int tile) {
        const int stage = tile % STAGES;
        barrier_wait(shared.keys.full[stage], tile / STAGES & 1);
        wgmma_fence();
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 16)
            Products::product(s, matrix_descriptor(&shared.q[d / 64][64 * group][d % 64], 0),
                              matrix_descriptor(&shared.k[stage][d / 64][0][d % 64], 0), d != 0);
        wgmma_commit();
    }

    // o += P V, in flight on return. [64, BLOCK_N] x [BLOCK_N, HEAD_DIM]
    __device__ __forceinline__ void issue_values(unsigned (&p)[BLOCK_N / 16][4], int tile) {
        const int stage = tile % STAGES;
        barrier_wait(shared.values.full[stage], tile / STAGES & 1);
        pin(o), pin(p);
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < BLOCK_N; n += 16)
            Products::product(o, p[n / 16], matrix_descriptor(shared.v[stage][0][n], BLOCK_N * 128));
        wgmma_commit();
    }

    __device__ __forceinline__ void release(Ring& ring, int tile) {
        barrier_arrive_if(lane == 0, ring.empty[tile % STAGES]);
    }

    __device__ __forceinline__ void take_turn(int tile) {
        if (TURNS) barrier_wait(shared.turn[group], tile & 1);
    }
    __device__ __forceinline__ void pass_turn() {
        if (TURNS) barrier_arrive_if(lane == 0, shared.turn[(group + 1) % CONSUMERS]);
    }

    // Scores to probabilities of this tile; `decay` is what the earlier output shrinks by.
    __device__ __forceinline__ void softmax(float (&s)[KEY_TILES][4], int tile, int first_row, int M, int N,
                                            float scale, float (&decay)[2]) {
        const int row = first_row + 64 * group + 16 * warp, key = tile * BLOCK_N;
        if (key + BLOCK_N > visible_keys(row, M, N)) mask_scores(s, key + lane % 4 * 2, row + lane / 4, M, N);
        rows.update(s, scale, decay);
    }

    __device__ __forceinline__ void run(int tiles, int first_row, int M, int N, float scale) {
        float s[KEY_TILES][4], decay[2];
        unsigned p[BLOCK_N / 16][4];
        barrier_wait(shared.queries, 0);
        take_turn(0);
        issue_scores(s, 0);
        pass_turn();
        wgmma_wait<0>(s);
        release(shared.keys, 0);
        softmax(s, 0, first_row, M, N, scale, decay);
        pack_rows(p, s);
        for (int tile = 1; tile < tiles; tile++) {
            take_turn(tile);
            issue_scores(s, tile);
            issue_values(p, tile - 1);
            pass_turn();
            wgmma_wait<1>(s);
            release(shared.keys, tile);
            softmax(s, tile, first_row, M, N, scale, decay);
            wgmma_wait<0>(o);
            release(shared.values, tile - 1);
            scale_rows(o, decay);
            pack_rows(p, s);
        }
        issue_values(p, tiles - 1);
        wgmma_wait<0>(o);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, Element* __restrict__ out, int heads, int group, int M, int N,
                    float scale_log2) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Place place = locate(heads, group, M, N);
    const int tiles = cdiv(place.keys, BLOCK_N), warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0) produce(shared, q, k, v, place, tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        Consumer consumer{shared, warpgroup - 1, lane, warp};
        barrier_arrive_if(TURNS && warpgroup == CONSUMERS && lane == 0, shared.turn[0]);  // group 0 begins
        consumer.run(tiles, place.first_row, M, N, scale_log2);
        const int row = place.first_row + 64 * consumer.group + 16 * warp;
        store_rows(out + (i64)place.slice * M * HEAD_DIM, consumer.o, consumer.rows, row, M);
    }
}
