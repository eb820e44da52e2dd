// As row_join.cuh, with work between the two halves: each warp of a cluster tells its state, and later hears the joint one.
#pragma once

#include "hopper.cuh"
#include "row_join.cuh"

// In shared memory, to be used in turns 0, 1, 0, 1, ...: who hears one turn has the other for the next. A State also has
// merge(other), for two states of one lane.
//
// Between blocks, states travel as stores that report to a barrier of the block they go to. A barrier of the cluster would have
// to release what was written before, and so wait for the gradients on their way to memory.
template <typename State>
struct Meeting {
    State states[2][CLUSTER * WARPS];
    Barrier told[2];

    // By all threads, and by all blocks before the first of them tells something.
    __device__ __forceinline__ void init() {
        if (CLUSTER == 1) return;
        if (threadIdx.x == 0) {
            for (Barrier& barrier : told) barrier_init(barrier, 1);
            barrier_init_fence();
        }
        cluster_arrive();
        cluster_wait();
    }
    template <typename Op>
    __device__ __forceinline__ void tell(const Op& op, State own, int turn) {
        own.join(op, Lanes<32>());
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if constexpr (CLUSTER == 1) {
            if (lane == 0) states[turn][warp] = own;
        } else {
            if (threadIdx.x == 0) barrier_expect(told[turn], sizeof(states[turn]));
            if (lane < CLUSTER) send(&states[turn][block_in_cluster() * WARPS + warp], told[turn], lane, own);
        }
    }
    // parity: of how often this turn was heard before.
    template <typename Op>
    __device__ __forceinline__ State hear(const Op& op, int turn, unsigned parity) {
        if constexpr (CLUSTER == 1) __syncthreads();
        else barrier_wait(told[turn], parity);
        State all;
#pragma unroll
        for (int first = 0; first < CLUSTER * WARPS; first += 32) {
            const int i = first + threadIdx.x % 32;
            if (i < CLUSTER * WARPS) all.merge(states[turn][i]);
        }
        all.join(op, Lanes<32>());
        return all;
    }

   private:
    // *to = value in block `rank`, whose barrier counts the bytes; State consists of floats.
    static __device__ __forceinline__ void send(State* to, Barrier& barrier, int rank, const State& value) {
        unsigned place, report, words[sizeof(State) / 4];
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(shared_address(to)), "r"(rank));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(report) : "r"(shared_address(&barrier)), "r"(rank));
        memcpy(words, &value, sizeof(State));
#pragma unroll
        for (int i = 0; i < (int)sizeof(State) / 4; ++i)
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(place + 4 * i),
                         "r"(words[i]), "r"(report)
                         : "memory");
    }
};
