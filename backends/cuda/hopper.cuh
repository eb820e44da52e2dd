// Instructions of sm_90: barriers in shared memory, tile copies (TMA), and what surrounds warpgroup products.
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

// After barrier_init, before anybody else may use the barriers: the copy engine and other blocks of a cluster see them.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
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

// Starts copying the box at (inner, outer) of a 2-D map; the barrier counts its bytes.
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, Barrier& barrier, int inner, int outer) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(shared_address(&barrier)), "r"(inner), "r"(outer)
        : "memory");
}

// A tile of 128-byte lines under the 128-byte swizzle: groups of eight lines are 1024 bytes apart. `leading` is the
// distance in bytes to the next 64 columns where the contiguous index is not the one summed over, else unused.
// Source: PTX ISA, "Matrix descriptor format".
__device__ __forceinline__ Descriptor matrix_descriptor(const void* tile, int leading) {
    const Descriptor start = (shared_address(tile) & 0x3ffff) >> 4;
    return start | (Descriptor)(leading >> 4) << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most Pending groups of products of this warpgroup are under way.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// For the compiler the sums are final once a product has been issued; this keeps their uses behind wgmma_wait.
template <int Count>
__device__ __forceinline__ void wgmma_results(float (&d)[Count][4]) {
#pragma unroll
    for (int j = 0; j < Count; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(d[j][i])::"memory");
}

// A warpgroup product m64nNk16 names its N / 2 sums one by one; these lists spell them out.
#define TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define NAMES_128 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define NAMES_256                                                   \
    TEN()                                                           \
    TEN(1)                                                          \
    TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) \
        TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127"
#define FOUR_SUMS(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define SIXTEEN_SUMS(j) FOUR_SUMS(j), FOUR_SUMS(j + 1), FOUR_SUMS(j + 2), FOUR_SUMS(j + 3)
#define SUMS_128 SIXTEEN_SUMS(0), SIXTEEN_SUMS(4), SIXTEEN_SUMS(8), SIXTEEN_SUMS(12)
#define SUMS_256 SUMS_128, SIXTEEN_SUMS(16), SIXTEEN_SUMS(20), SIXTEEN_SUMS(24), SIXTEEN_SUMS(28)

// d (+)= a b, both in shared memory, a [64][16] and b [16][N] with either index contiguous; not `add` starts a new sum.
#define WGMMA(N, ELEMENT_TYPE, TYPE, A, B, ADD, A_TRANSPOSED, B_TRANSPOSED)                                          \
    template <bool AKMajor, bool BKMajor>                                                                            \
    __device__ __forceinline__ void wgmma(float(&d)[N / 8][4], Descriptor a, Descriptor b, bool add, ELEMENT_TYPE) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N             \
                     "k16.f32." TYPE "." TYPE " {" NAMES_##N "}, %" #A ", %" #B ", p, 1, 1, %" #A_TRANSPOSED         \
                                                             ", %" #B_TRANSPOSED "; }"                               \
                     : SUMS_##N                                                                                      \
                     : "l"(a), "l"(b), "r"((int)add), "n"(!AKMajor), "n"(!BKMajor));                                 \
    }
WGMMA(128, __half, "f16", 64, 65, 66, 67, 68)
WGMMA(128, __nv_bfloat16, "bf16", 64, 65, 66, 67, 68)
WGMMA(256, __half, "f16", 128, 129, 130, 131, 132)
WGMMA(256, __nv_bfloat16, "bf16", 128, 129, 130, 131, 132)
#undef WGMMA

// ---- clusters: blocks that start together and reach one another's shared memory

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
}

// Arrives at the barrier of block `rank` of the cluster that lies where `barrier` lies in this block.
__device__ __forceinline__ void barrier_arrive_at(Barrier& barrier, unsigned rank) {
    asm volatile(
        "{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, "
        "[r]; }" ::"r"(shared_address(&barrier)),
        "r"(rank)
        : "memory");
}

// Like tma_load, into every block of the cluster whose bit is set in `ranks`, at the same place; each one's barrier
// counts.
__device__ __forceinline__ void tma_multicast(void* to, const TensorMap& map, Barrier& barrier, int inner, int outer,
                                              unsigned short ranks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
        "l"(&map), "r"(shared_address(&barrier)), "r"(inner), "r"(outer), "h"(ranks)
        : "memory");
}
