// What the threads that share a row tell one another: the states of an operator become one, the same in every thread.
//
// A state is a small struct of floats that every thread begins with its default. `state.join(op, lanes)` makes one of the states of
// the lanes, through lanes.sum and lanes.max. It is called for the lanes of a warp, then for the warps of a block, then for the
// blocks of a cluster: one barrier each, whatever there is to add up.
#pragma once

#include "hopper.cuh"
#include "rows.cuh"

// The lanes that take part: groups of Width neighbours, a power of two up to 32.
template <int Width>
struct Lanes {
    __device__ __forceinline__ float sum(float x) const { return warp_reduce<Width>(x, Sum()); }
    __device__ __forceinline__ float max(float x) const { return warp_reduce<Width>(x, Max()); }
};

// What is added up where that is one sum.
struct OneSum {
    float sum = 0.0f;
    template <typename Op, typename L>
    __device__ __forceinline__ void join(const Op&, L lanes) {
        sum = lanes.sum(sum);
    }
};

__host__ __device__ constexpr int power_above(int n) { return n <= 1 ? 1 : 2 * power_above((n + 1) / 2); }

constexpr int WARPS = GROUP <= 32 ? 1 : GROUP / 32;
static_assert(GROUP <= 32 || GROUP % 32 == 0, "whole warps, or a part of one");

template <typename State>
struct JoinRoom {  // in shared memory; two of them in turn serve any number of joins, but one join of a cluster each
    State warps[WARPS], blocks[CLUSTER];
    Barrier sent;  // by all blocks of the cluster
};

// Before a join of a cluster, in two halves: after `await_cluster` all blocks run and can be sent to. There is time between
// them to ask for the row.
template <typename State>
__device__ __forceinline__ void join_cluster(JoinRoom<State>& room) {
    if constexpr (CLUSTER > 1) {
        if (threadIdx.x == 0) {
            barrier_init(room.sent, 1);
            barrier_init_fence();
            barrier_expect(room.sent, CLUSTER * (int)sizeof(State));
        }
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
}
__device__ __forceinline__ void await_cluster() {
    if constexpr (CLUSTER > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// *to = value in the shared memory of block `rank`, whose `sent` counts the bytes. State consists of floats. No thread waits for
// a fence here, as it would before a barrier of the cluster.
template <typename State>
__device__ __forceinline__ void send_to_block(State* to, Barrier& sent, int rank, const State& value) {
    unsigned there, barrier;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(to)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(shared_address(&sent)), "r"(rank));
    float words[sizeof(State) / 4];
    memcpy(words, &value, sizeof(State));
#pragma unroll
    for (int i = 0; i < (int)sizeof(State) / 4; ++i)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(there + 4 * i),
                     "f"(words[i]), "r"(barrier)
                     : "memory");
}

template <typename Op, typename State>
__device__ __forceinline__ State joined(const Op& op, State state, JoinRoom<State>& room) {
    state.join(op, Lanes<(GROUP < 32 ? GROUP : 32)>());
    const int lane = threadIdx.x % 32;
    if constexpr (WARPS > 1) {
        constexpr int Slots = power_above(WARPS);
        if (lane == 0) room.warps[threadIdx.x / 32] = state;
        __syncthreads();
        state = State();
        if (lane % Slots < WARPS) state = room.warps[lane % Slots];
        state.join(op, Lanes<Slots>());
    }
    if constexpr (CLUSTER > 1) {
        if (threadIdx.x < CLUSTER) send_to_block(&room.blocks[block_in_cluster()], room.sent, threadIdx.x, state);
        barrier_wait(room.sent, 0);
        state = room.blocks[lane % CLUSTER];
        state.join(op, Lanes<CLUSTER>());
    }
    return state;
}
