// Few long rows of logits in parts: one launch looks at them, the next starts early and goes on from what that leaves.
//
//   -DWHOLE=1    a part is the piece of a row that a block of GROUP threads has, as in row_pieces.cuh, and lanes take parts in turns
//   -DWHOLE=0    a part is what a warp has where a cluster of SHARED_BY blocks of GROUP threads has the row; states come together
//                as they do there, so that a row has the same bits
//   -DTHREADS    of a block; GROUP for whole pieces
//   -DSTATES     parts of a row for each lane, of whole pieces
#pragma once

#include "dependent_launch.cuh"
#include "loss_states.cuh"
#include "row_pieces.cuh"

#ifndef WHOLE
#define WHOLE 1
#endif
#ifndef SHARED_BY
#define SHARED_BY 1
#endif
#ifndef THREADS
#define THREADS GROUP
#endif
#ifndef STATES
#define STATES 1
#endif
static_assert(CLUSTER == 1, "blocks of a row are told apart by their numbers");
static_assert(WHOLE ? THREADS == GROUP : SHARED_BY * GROUP % THREADS == 0, "blocks are full");

constexpr int SLOTS = power_above(WARPS), SIDE = 32 / SLOTS;  // lanes for a block of the cluster; such blocks side by side in a warp
constexpr int HELD = WHOLE ? STATES : cdiv(SHARED_BY, SIDE);  // states of a lane

// The vectors of a thread in a row, by the number of its block in the row.
struct Slice : Part {
    int piece, thread;

    __device__ __forceinline__ Slice(const T* row, int n, int block)
        : Part(row, n, (block * THREADS + threadIdx.x) / GROUP),
          piece((block * THREADS + threadIdx.x) / GROUP),
          thread((block * THREADS + threadIdx.x) % GROUP) {
        const int by = (thread - (int)threadIdx.x) * WIDTH;
        first += by, left -= by;
    }
    __device__ __forceinline__ int beside() const {
        return !ALIGNED && piece == 0 && thread < peel.few ? peel.beside(thread) : -1;
    }
};

// Of `blocks` for each row; states: WORDS of each of its `parts`.
__device__ __forceinline__ void look_at_parts(const T* logits, float2* states, int n, i64 step, int blocks, int parts) {
    __shared__ JoinRoom<Logits> room;
    let_next_start();
    const i64 row = blockIdx.x / blocks;
    const int block = blockIdx.x % blocks, part = WHOLE ? block : (block * THREADS + (int)threadIdx.x) / 32;
    const T* const x = logits + row * step;
    const Slice slice(x, n, block);
    Elements held[UNROLL];
    slice.each([&](int u, int i) { held[u] = load_constant<WIDTH>(x + slice.first + i); });
    const int beside = slice.beside();
    const float single = beside >= 0 ? to_float(x[beside]) : 0.0f;
    Logits seen;
    seen.add([&](auto f) {
        slice.each([&](int u, int) {
            float values[WIDTH];
            to_floats(values, held[u]);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) f(&values[j]);
        });
        if (beside >= 0) f(&single);
    });
    if constexpr (WHOLE) seen = joined(seen, seen, room);
    else seen.join(seen, Lanes<32>());
    if (threadIdx.x % (WHOLE ? THREADS : 32) != 0) return;
    float2* const to = states + (row * parts + part) * WORDS;
    to[0] = make_float2(seen.exponentials.m, seen.exponentials.sum);
    if (SMOOTHED) to[1] = make_float2(seen.sum, 1.0f);
}

// The states of one row, for a warp: asked for, then put together in every lane.
struct RowStates {
    float2 held[HELD][WORDS];

    __device__ __forceinline__ void ask(const float2* states, int parts) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < HELD; ++k) {
            const int part = WHOLE ? 32 * k + lane : (k * SIDE + lane / SLOTS) * WARPS + lane % SLOTS;
            const bool there = part < parts && (WHOLE || lane % SLOTS < WARPS);
#pragma unroll
            for (int w = 0; w < WORDS; ++w)
                held[k][w] = there ? __ldcg(states + part * WORDS + w) : make_float2(w ? 0.0f : Max::identity(), 0.0f);
        }
    }
    __device__ __forceinline__ Logits total() const {
        Logits row;
        if constexpr (WHOLE) {
#pragma unroll
            for (int k = 0; k < HELD; ++k) {
                add_part(row, held[k][0]);
                if (SMOOTHED) row.sum += held[k][WORDS - 1].x;
            }
            row.join(row, Lanes<32>());
        } else {
            const int block = threadIdx.x % SHARED_BY;  // of the cluster
#pragma unroll
            for (int k = 0; k < HELD; ++k) {
                Logits some;
                some.exponentials.m = held[k][0].x, some.exponentials.sum = held[k][0].y;
                if (SMOOTHED) some.sum = held[k][WORDS - 1].x;
                some.join(some, Lanes<SLOTS>());
                some = from_lane(some, block % SIDE * SLOTS);
                if (block / SIDE == k) row = some;
            }
            row.join(row, Lanes<SHARED_BY>());
        }
        return row;
    }
    static __device__ __forceinline__ Logits from_lane(Logits x, int lane) {
        x.exponentials.m = __shfl_sync(0xffffffffu, x.exponentials.m, lane);
        x.exponentials.sum = __shfl_sync(0xffffffffu, x.exponentials.sum, lane);
        if (SMOOTHED) x.sum = __shfl_sync(0xffffffffu, x.sum, lane);
        return x;
    }
};

// What the losses of all rows, at most 32 for each warp of the only block that has them, add up to, and how many rows count: in
// every thread, in one order. loss_of(row, its state, its target, its logit there) is asked once for each row.
template <int Threads, typename F>
__device__ __forceinline__ float2 all_losses(
    const T* logits, const i64* target, const float2* states, int rows, int n, i64 step, i64 ignored, int parts, F loss_of) {
    constexpr int Warps = Threads / 32, Together = cdiv(4, HELD);  // rows whose states are asked for at a time
    __shared__ float2 scratch[Warps];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = warp + Warps * lane;
    const Target wanted(mine < rows ? target[mine] : ignored, n, ignored);
    const float chosen = wanted.counts && wanted.is_class ? to_float(logits[mine * step + wanted.value]) : 0.0f;
    wait_for_previous();
    Logits found;
    for (int k = 0; warp + Warps * k < rows; k += Together) {
        RowStates some[Together];
#pragma unroll
        for (int u = 0; u < Together; ++u)
            some[u].ask(states + (i64)min(warp + Warps * (k + u), rows - 1) * parts * WORDS, parts);
#pragma unroll
        for (int u = 0; u < Together; ++u) {
            const Logits all = some[u].total();
            if (lane == k + u) found = all;
        }
    }
    const float loss = mine < rows ? loss_of(mine, found, wanted, chosen) : 0.0f;
    return group_sum<Threads>(make_float2(loss, wanted.counts ? 1.0f : 0.0f), scratch);
}
