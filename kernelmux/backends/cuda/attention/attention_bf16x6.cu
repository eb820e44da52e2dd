// attention of fp32 on Hopper's tensor cores of bf16: queries, keys and values come as three planes each (planes.cu),
// and six products of planes are as exact as one of fp32. Weights are split on the way, in registers.
//
// One thread feeds planes of keys and values into a ring through TMA; CONSUMERS warpgroups own 64 query rows each. Both
// products are summed by themselves, small terms first, and the output is added up by the FP32 pipes: a tensor core
// cuts what it adds to, which a long chain would show. Keys travel while values are multiplied. The groups take no turns:
// one is at its softmax while the other multiplies all the same. H200, us, 1 x 16 x 4096, D = 128, causal, 651, by turns
// 682; 3 x 16/4 x 838, D = 72, 152 and 253.
#include "attention.cuh"
#include "attention_warpgroup.cuh"
#include "attention_works.cuh"
#include "dependent_launch.cuh"

#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef UNITS
#define UNITS 8  // planes of tiles in the ring
#endif

#define THREADS (128 * (CONSUMERS + 1))
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240
#define PANELS ((HEAD_DIM + 63) / 64)  // a TMA box of the 128-byte swizzle is 64 elements wide
#define PLANE (64 * PANELS)            // columns of a plane
#define KEY_TILES (BLOCK_N / 8)
#define OUT_TILES ((HEAD_DIM + 15) / 16 * 2)
#define PIECE_TILES (OUT_TILES <= 16 ? 16 : 12)  // of sums that there are registers for beside the output
#define RUN 128                                  // columns whose products a tensor core adds up
#define RUNS ((HEAD_DIM + RUN - 1) / RUN)

using Part = __nv_bfloat16;

constexpr float OF_ONE = 1.0f / (1 << 24), OF_BOTH = OF_ONE * OF_ONE;  // what undoes the scale of planes

// d = a b, as a product of a in registers that adds.
#define FIRST_PRODUCT(N, A0, A1, A2, A3, B)                                                                         \
    __device__ __forceinline__ void begin_wgmma(float(&d)[N / 8][4], const unsigned(&a)[4], Descriptor b) {         \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; " INSTRUCTION(                                           \
                         N, 16, "bf16") "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 1; }"          \
                     : SUMS_##N                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                         \
    }
FIRST_PRODUCT(16, 8, 9, 10, 11, 12)
FIRST_PRODUCT(32, 16, 17, 18, 19, 20)
FIRST_PRODUCT(48, 24, 25, 26, 27, 28)
FIRST_PRODUCT(64, 32, 33, 34, 35, 36)
FIRST_PRODUCT(80, 40, 41, 42, 43, 44)
FIRST_PRODUCT(96, 48, 49, 50, 51, 52)
FIRST_PRODUCT(112, 56, 57, 58, 59, 60)
FIRST_PRODUCT(128, 64, 65, 66, 67, 68)

static_assert(BLOCK_M == 64 * CONSUMERS, "a warpgroup product has 64 rows");
static_assert(UNITS >= 3, "a product takes three units");

struct alignas(1024) Shared {
    Part q[3][PANELS][BLOCK_M][64];
    Part units[UNITS][PANELS][BLOCK_N][64];
    Barrier full[UNITS], empty[UNITS];  // a unit has arrived; all consumer warps have read it
    Barrier queries_full, queries_empty;
};

__device__ __forceinline__ void init_barriers(Shared& shared) {
    for (int unit = 0; unit < UNITS; unit++)
        barrier_init(shared.full[unit], 1), barrier_init(shared.empty[unit], 4 * CONSUMERS);
    barrier_init(shared.queries_full, 1), barrier_init(shared.queries_empty, 4 * CONSUMERS);
    barrier_init_fence();
}

struct Producer {
    Shared& shared;
    RingPlace<UNITS> next;

    __device__ __forceinline__ void load(const TensorMap& map, int row, int head, int batch) {
        for (int plane = 0; plane < 3; plane++, next.advance()) {
            Barrier& full = shared.full[next.stage];
            barrier_wait(shared.empty[next.stage], next.phase ^ 1);
            barrier_expect(full, sizeof(shared.units[0]));
            for (int panel = 0; panel < PANELS; panel++)
                tma_load(shared.units[next.stage][panel], map, full, plane * PLANE + 64 * panel, row, head, batch);
        }
    }

    __device__ __forceinline__ void load_queries(const TensorMap& map, const Place& place, unsigned parity) {
        barrier_wait(shared.queries_empty, parity);
        barrier_expect(shared.queries_full, sizeof(shared.q));
        for (int i = 0; i < 3 * PANELS; i++)
            tma_load(shared.q[i / PANELS][i % PANELS], map, shared.queries_full, 64 * i, place.first_row, place.head,
                     place.batch);
    }

    // The keys of a tile come before the values of the tile ahead of it.
    __device__ __forceinline__ void run(const TensorMap& q, const TensorMap& k, const TensorMap& v, const Place& place,
                                        int wave) {
        const int end = end_of(place);
        load(k, place.first_key, place.kv_head, place.batch);
        load_queries(q, place, wave & 1 ^ 1);
        for (int row = place.first_key; row < end; row += BLOCK_N) {
            load(v, row, place.kv_head, place.batch);
            if (row + BLOCK_N < end) load(k, row + BLOCK_N, place.kv_head, place.batch);
        }
    }
};

// x, the same in all lanes. Of wide heads the compiler would keep what it makes of it from product to product, and spill.
__device__ __forceinline__ int anew(int x) { return RUNS == 1 ? x : __shfl_sync(0xffffffffu, x, 0); }

// Weights as the left operands of three products: an m16k16 fragment per 16 keys and plane.
template <int TILES>
__device__ __forceinline__ void split_rows(unsigned (&p)[3][TILES / 2][4], const float (&s)[TILES][4]) {
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        float low = s[i / 2][i % 2 * 2], high = s[i / 2][i % 2 * 2 + 1];
#pragma unroll
        for (int plane = 0; plane < 3; plane++) {
            const unsigned word = p[plane][i / 4][i % 4] = pack<Part>(low, high);
            low -= __uint_as_float(word << 16), high -= __uint_as_float(word & 0xffff0000u);
        }
    }
}

// One warpgroup's 64 rows. `next` is the unit that is multiplied next.
struct Consumer {
    Shared& shared;
    const int group, lane, warp;
    RingPlace<UNITS> next;
    float o[OUT_TILES][4];
    RowPair rows;

    __device__ __forceinline__ void release(const int (&stages)[3]) {
#pragma unroll
        for (int i = 0; i < 3; i++) barrier_arrive_if(lane == 0, shared.empty[stages[i]]);
    }

    // Until the next unit is there; its stage.
    __device__ __forceinline__ int await_unit() {
        barrier_wait(shared.full[next.stage], next.phase);
        const int stage = __shfl_sync(0xffffffffu, next.stage, 0);  // the compiler sees that lanes have the same
        next.advance();
        return stage;
    }

    // multiply(plane of the left operand, stage of the right one) six times, small terms first, in flight on return.
    // The right planes are the next three units, or those in `stages`.
    template <bool Next, class Multiply>
    __device__ __forceinline__ void multiply_planes(int (&stages)[3], Multiply multiply) {
#pragma unroll
        for (int right = 0; right < 3; right++) {
            if (Next) stages[right] = await_unit();
            multiply(2 - right, stages[right]);
        }
        multiply(1, stages[0]), multiply(0, stages[1]), multiply(0, stages[0]);
        wgmma_commit();
    }

    // s = Q K^T, by runs of columns, in flight on return. [64, HEAD_DIM] x [BLOCK_N, HEAD_DIM]^T
    __device__ __forceinline__ void issue_scores(float (&s)[RUNS][KEY_TILES][4], int (&stages)[3]) {
        wgmma_fence();
        multiply_planes<true>(stages, [&](int left, int stage) {
            const int unit = anew(stage), rows = anew(group);
#pragma unroll
            for (int d = 0; d < (HEAD_DIM + 15) / 16 * 16; d += 16)
                wgmma<true, true>(
                    s[d / RUN],
                    descriptor_behind(shared.q[left][0][64 * rows], 0, d / 64 * BLOCK_M * 128 + d % 64 * 2),
                    descriptor_behind(shared.units[unit], 0, d / 64 * BLOCK_N * 128 + d % 64 * 2),
                    left < 2 || d % RUN > 0, Part());
        });
    }

    // o = decay o + P V, from tile First of the columns on. [64, BLOCK_N] x [BLOCK_N, HEAD_DIM]
    template <int First = 0>
    __device__ __forceinline__ void add_values(unsigned (&p)[3][BLOCK_N / 16][4], const float (&decay)[2],
                                               int (&stages)[3]) {
        constexpr int Left = OUT_TILES - First, Tiles = Left <= PIECE_TILES ? Left : 8;
        float sum[Tiles][4];
        pin(p[0]), pin(p[1]), pin(p[2]);
        wgmma_fence();
        multiply_planes<First == 0>(stages, [&](int left, int stage) {
#pragma unroll
            for (int n = 0; n < BLOCK_N; n += 16) {
                const Descriptor values = descriptor_behind(shared.units[stage][First / 8], BLOCK_N * 128, n * 128);
                if (left == 2 && n == 0) begin_wgmma(sum, p[left][0], values);
                else wgmma(sum, p[left][n / 16], values, Part());
            }
        });
        wgmma_wait<0>(sum);
        if (Tiles == Left) release(stages);
#pragma unroll
        for (int i = 0; i < 4 * Tiles; i++) {
            float& x = o[First + i / 4][i % 4];
            x = fmaf(x, decay[i % 4 / 2], sum[i / 4][i % 4]);
        }
        if constexpr (Tiles < Left) add_values<First + Tiles>(p, decay, stages);
    }

    // Scores of the tile that starts at `key` to planes of weights.
    __device__ __forceinline__ void softmax(unsigned (&p)[3][BLOCK_N / 16][4], float (&runs)[RUNS][KEY_TILES][4],
                                            int key, const Place& place, const Shape& shape, float scale,
                                            float (&decay)[2]) {
        const int row = place.first_row + 64 * group + 16 * warp, shift = shape.shift, N = shape.N,
                  window = shape.window;
        float(&s)[KEY_TILES][4] = runs[0];
#pragma unroll
        for (int i = 0; i < 4 * KEY_TILES; i++) {
            float& x = s[i / 4][i % 4];
            if (RUNS == 2) x += runs[RUNS - 1][i / 4][i % 4];
            x *= OF_BOTH;
        }
        if (needs_mask(key, row, shift, N, window))
            mask_scores(s, key + lane % 4 * 2, row + lane / 4, shift, N, window);
        rows.update(s, scale, decay);
        split_rows(p, s);
    }

    __device__ __forceinline__ void run(const Place& place, unsigned query_parity, const Shape& shape, float scale) {
        const int end = end_of(place);
        rows = RowPair();
#pragma unroll
        for (int i = 0; i < 4 * OUT_TILES; i++) o[i / 4][i % 4] = 0.0f;
        barrier_wait(shared.queries_full, query_parity);
#pragma unroll 1
        for (int key = place.first_key; key < end; key += BLOCK_N) {
            float s[RUNS][KEY_TILES][4], decay[2];
            unsigned p[3][BLOCK_N / 16][4];
            int stages[3];
            issue_scores(s, stages);
            wgmma_wait<0>(s[0]), pin(s[RUNS - 1]);
            release(stages);
            barrier_arrive_if(lane == 0 && key + BLOCK_N >= end, shared.queries_empty);
            softmax(p, s, key, place, shape, scale, decay);
            add_values(p, decay, stages);
        }
    }
};

// out[row..row + 16) = o / (the sum of weights), rows at or past M left out.
__device__ __forceinline__ void store_output(float* out, const float (&o)[OUT_TILES][4], const RowPair& rows, int row,
                                             int M) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int target = row + lane / 4 + 8 * r;
        const float factor = rows.inverse_sum(r) * OF_ONE;
        float* to = out + (i64)target * HEAD_DIM + lane % 4 * 2;
        if (target >= M) continue;
#pragma unroll
        for (int i = 0; i < OUT_TILES; i++) {
            const float x = o[i][2 * r] * factor, y = o[i][2 * r + 1] * factor;
            const int column = 8 * i + lane % 4 * 2;
            if (HEAD_DIM % 2 == 0) {
                if (column < HEAD_DIM) *reinterpret_cast<float2*>(to + 8 * i) = make_float2(x, y);
            } else {
                if (column < HEAD_DIM) to[8 * i] = x;
                if (column + 1 < HEAD_DIM) to[8 * i + 1] = y;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_bf16x6(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                     const __grid_constant__ TensorMap v, float* __restrict__ out, float* __restrict__ lse, int slices,
                     int section, int heads, int group, int M, int N, int shift, int window, float scale_log2,
                     int works) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Shape shape = {slices, section, heads, group, M, N, shift, window};
    const int warpgroup = warpgroup_index();
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();
    wait_for_previous();
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        Producer producer{shared};
        if (threadIdx.x == 0)
            for (int wave = 0; work_index(wave) < works; wave++)
                producer.run(q, k, v, locate(work_index(wave), shape), wave);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        Consumer consumer{shared, warpgroup - 1, lane, warp};
        for (int wave = 0; work_index(wave) < works; wave++) {
            const Place place = locate(work_index(wave), shape);
            consumer.run(place, wave & 1, shape, scale_log2);
            const int row = place.first_row + 64 * consumer.group + 16 * warp;
            store_output(out + (i64)place.slice * M * HEAD_DIM, consumer.o, consumer.rows, row, M);
            store_logs(lse + (i64)place.slice * M, consumer.rows, row, M, scale_log2);
        }
    }
}
