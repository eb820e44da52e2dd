// Hopper instructions of the wgmma attention kernel: mbarriers, TMA loads, matrix descriptors, m64nNk16.
#pragma once

// What cuTensorMapEncodeTiled fills in on the host.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

using Barrier = unsigned long long;
using Descriptor = unsigned long long;

__device__ __forceinline__ void barrier_init(Barrier& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
// Predicated rather than in a branch: the warp must be converged at the wgmma instruction that follows.
__device__ __forceinline__ void barrier_arrive_if(bool mine, Barrier& barrier) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(
                     shared_address(&barrier)), "r"((int)mine) : "memory");
}
// Arrives, and lets the phase end only after `bytes` have been copied.
__device__ __forceinline__ void barrier_expect(Barrier& barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
}
// Returns once the phase of this parity is over; a fresh barrier counts as having ended a phase of parity 1.
__device__ __forceinline__ void barrier_wait(Barrier& barrier, int parity) {
    unsigned done;
    do {
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done) : "r"(shared_address(&barrier)), "r"(parity) : "memory");
    } while (!done);
}

__device__ __forceinline__ void tma_load(void* target, const TensorMap& map, Barrier& barrier, int column, int row,
                                         int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];"
        ::"r"(shared_address(target)), "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row), "r"(head),
        "r"(batch) : "memory");
}

// A tile of 128-byte lines under the 128-byte swizzle: groups of eight lines are 1024 bytes apart. `leading` is the
// distance in bytes to the next 64 columns where the columns are the outer index of the product (V), else unused.
__device__ __forceinline__ Descriptor matrix_descriptor(const void* tile, int leading) {
    const Descriptor start = (shared_address(tile) & 0x3ffff) >> 4;
    return start | (Descriptor)(leading >> 4) << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

// Keeps the compiler from moving arithmetic on registers of a product across the point where they are handed over.
template <int TILES>
__device__ __forceinline__ void pin(float (&d)[TILES][4]) {
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}
template <int TILES>
__device__ __forceinline__ void pin(unsigned (&a)[TILES][4]) {
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// What was written to registers so far is seen by the products that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the last PENDING committed groups are done, d among them.
template <int PENDING, int TILES>
__device__ __forceinline__ void wgmma_wait(float (&d)[TILES][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    pin(d);
}

// A warpgroup product m64nNk16 names its N / 2 sums one by one; these lists spell them out.
#define TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define NAMES_64 TEN() TEN(1) TEN(2) "%30, %31"
#define NAMES_128 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define NAMES_176 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) "%80, %81, %82, %83, %84, %85, %86, %87"
#define SUMS(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define SUMS_64 SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7)
#define SUMS_128 SUMS_64, SUMS(8), SUMS(9), SUMS(10), SUMS(11), SUMS(12), SUMS(13), SUMS(14), SUMS(15)
#define SUMS_176 SUMS_128, SUMS(16), SUMS(17), SUMS(18), SUMS(19), SUMS(20), SUMS(21)

// d (+)= a b^T, both in shared memory with contiguous columns; add = 0 starts a new sum.
#define SHARED_PRODUCT(N, TYPE, A, B, ADD)                                                                             \
    static __device__ __forceinline__ void product(float (&d)[N / 8][4], Descriptor a, Descriptor b, int add) {        \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n"                                                \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES_##N "}, %" #A ", %" #B \
                     ", p, 1, 1, 0, 0;\n}"                                                                             \
                     : SUMS_##N : "l"(a), "l"(b), "r"(add));                                                           \
    }
// d += a b, a in registers, b in shared memory with contiguous columns.
#define REGISTER_PRODUCT(N, TYPE, A0, A1, A2, A3, B)                                                                   \
    static __device__ __forceinline__ void product(float (&d)[N / 8][4], const unsigned (&a)[4], Descriptor b) {       \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                                        \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES_##N "}, {%" #A0 ", %"  \
                     #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 1;\n}"                                              \
                     : SUMS_##N : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                 \
    }
#define PRODUCTS(TYPE)                             \
    SHARED_PRODUCT(64, TYPE, 32, 33, 34)           \
    SHARED_PRODUCT(128, TYPE, 64, 65, 66)          \
    SHARED_PRODUCT(176, TYPE, 88, 89, 90)          \
    REGISTER_PRODUCT(64, TYPE, 32, 33, 34, 35, 36) \
    REGISTER_PRODUCT(128, TYPE, 64, 65, 66, 67, 68)

template <class E>
struct Warpgroup;
template <>
struct Warpgroup<__half> {
    PRODUCTS("f16")
};
template <>
struct Warpgroup<__nv_bfloat16> {
    PRODUCTS("bf16")
};
