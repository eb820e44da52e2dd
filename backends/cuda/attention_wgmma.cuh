// Hopper instructions of the wgmma attention kernel: mbarriers, TMA loads, matrix descriptors, m64nNk16.
#pragma once

// What cuTensorMapEncodeTiled fills in on the host.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

using Barrier = unsigned long long;

__device__ __forceinline__ void barrier_init(Barrier& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(Barrier& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives, and lets the phase end only after `bytes` have been copied.
__device__ __forceinline__ void barrier_expect(Barrier& barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes) : "memory");
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
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
        ::"r"(shared_address(target)), "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}

// A tile of 128-byte lines under the 128-byte swizzle: groups of eight lines are 1024 bytes apart. `leading` is the
// distance in bytes to the next 64 columns where the columns are the outer index of the product (V), else unused.
__device__ __forceinline__ unsigned long long matrix_descriptor(const void* tile, int leading) {
    const unsigned long long start = (shared_address(tile) & 0x3ffff) >> 4;
    return start | (unsigned long long)(leading >> 4) << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define REGISTERS_32 "{" TEN() TEN(1) TEN(2) "%30, %31}"
#define REGISTERS_64 "{" TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63}"
#define TILE(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define TILES_4(d, i) TILE(d, i), TILE(d, i + 1), TILE(d, i + 2), TILE(d, i + 3)
#define TILES_8(d) TILES_4(d, 0), TILES_4(d, 4)
#define TILES_16(d) TILES_8(d), TILES_4(d, 8), TILES_4(d, 12)

// d (+)= a b^T with both in shared memory, their columns contiguous; `add` 0 starts a new sum.
#define WGMMA_SHARED(N, TYPE, REGISTERS, OPERANDS, A, B, ADD)                                                       \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " " \
                 REGISTERS ", %" #A ", %" #B ", p, 1, 1, 0, 0;\n}"                                                  \
                 : OPERANDS : "l"(a), "l"(b), "r"(add))
// d += a b with a in registers, the columns of b contiguous.
#define WGMMA_REGISTERS(N, TYPE, REGISTERS, OPERANDS, A0, A1, A2, A3, B)                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " " REGISTERS                      \
                 ", {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1, 1;"                                 \
                 : OPERANDS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

#define WGMMA_OF(ELEMENT_TYPE, TYPE)                                                                                \
    __device__ __forceinline__ void wgmma(float (&d)[8][4], unsigned long long a, unsigned long long b, int add,    \
                                          ELEMENT_TYPE) {                                                           \
        WGMMA_SHARED(64, TYPE, REGISTERS_32, TILES_8(d), 32, 33, 34);                                               \
    }                                                                                                               \
    __device__ __forceinline__ void wgmma(float (&d)[16][4], unsigned long long a, unsigned long long b, int add,   \
                                          ELEMENT_TYPE) {                                                           \
        WGMMA_SHARED(128, TYPE, REGISTERS_64, TILES_16(d), 64, 65, 66);                                             \
    }                                                                                                               \
    __device__ __forceinline__ void wgmma(float (&d)[8][4], const unsigned (&a)[4], unsigned long long b,           \
                                          ELEMENT_TYPE) {                                                           \
        WGMMA_REGISTERS(64, TYPE, REGISTERS_32, TILES_8(d), 32, 33, 34, 35, 36);                                    \
    }                                                                                                               \
    __device__ __forceinline__ void wgmma(float (&d)[16][4], const unsigned (&a)[4], unsigned long long b,          \
                                          ELEMENT_TYPE) {                                                           \
        WGMMA_REGISTERS(128, TYPE, REGISTERS_64, TILES_16(d), 64, 65, 66, 67, 68);                                  \
    }
WGMMA_OF(__half, "f16")
WGMMA_OF(__nv_bfloat16, "bf16")
