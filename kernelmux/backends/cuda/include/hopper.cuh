// Instructions of sm_90: barriers in shared memory, tile copies (TMA) and what waits for them, matrices to shared memory.
#pragma once
#include "tensor_cores.cuh"

// What cuTensorMapEncodeTiled fills in on the host.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

using Barrier = unsigned long long;
using Descriptor = unsigned long long;

__device__ __forceinline__ void barrier_init(Barrier& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

// After barrier_init, before another thread may use the barriers: the copy engine sees them too.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Predicated rather than in a branch: the warp must be converged at the wgmma instruction that follows.
__device__ __forceinline__ void barrier_arrive_if(bool mine, Barrier& barrier) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(
                     shared_address(&barrier)),
                 "r"((int)mine)
                 : "memory");
}

// Arrives at a barrier of block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(bool mine, Barrier& barrier, int rank) {
    asm volatile(
        "{ .reg .pred p; .reg .b32 there; setp.ne.b32 p, %1, 0; mapa.shared::cluster.u32 there, %0, %2; "
        "@p mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(&barrier)),
        "r"((int)mine), "r"(rank)
        : "memory");
}

// Arrives, and lets the phase end only after `bytes` have been copied.
__device__ __forceinline__ void barrier_expect(Barrier& barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
}

// Returns once the phase of this parity is over; a fresh barrier counts as having ended a phase of parity 1.
__device__ __forceinline__ void barrier_wait(Barrier& barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(&barrier)), "r"(parity)
                     : "memory");
    } while (!done);
}

// A place in a ring of Stages, the same for those who fill it and those who empty it; `phase` flips each time round.
template <int Stages>
struct RingPlace {
    int stage = 0;
    unsigned phase = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == Stages) stage = 0, phase ^= 1;
    }
};

// Start copying the box at these coordinates, innermost first, of a 2-D or 4-D map; the barrier counts its bytes.
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, Barrier& barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(shared_address(&barrier)), "r"(x), "r"(y)
        : "memory");
}
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, Barrier& barrier, int x, int y, int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(shared_address(to)),
        "l"(&map), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}

// To shared memory, four 8 x 8 matrices of a warp, each transposed; a lane names a row of 16 bytes.
__device__ __forceinline__ void store_transposed(void* row, const unsigned (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}
