// Products of a warpgroup (wgmma, sm_90): 64 rows of sums in registers, operands in swizzled shared memory.
#pragma once
#include "hopper.cuh"

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

// For the compiler the sums are final once a product has been issued, and so are its register operands; these keep what
// else happens to them on its side of a wait or of a product.
template <int Count>
__device__ __forceinline__ void pin(float (&d)[Count][4]) {
#pragma unroll
    for (int i = 0; i < 4 * Count; i++) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}
template <int Count>
__device__ __forceinline__ void pin(unsigned (&a)[Count][4]) {
#pragma unroll
    for (int i = 0; i < 4 * Count; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// The same for the sums `d`, which may be used from here on.
template <int Pending, int Count>
__device__ __forceinline__ void wgmma_wait(float (&d)[Count][4]) {
    wgmma_wait<Pending>();
    pin(d);
}

// A product m64nN names its N / 2 sums one by one; these lists spell them out.
#define TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define FIFTY TEN() TEN(1) TEN(2) TEN(3) TEN(4)
#define NAMES_64 TEN() TEN(1) TEN(2) "%30, %31"
#define NAMES_128 FIFTY TEN(5) "%60, %61, %62, %63"
#define NAMES_176 FIFTY TEN(5) TEN(6) TEN(7) "%80, %81, %82, %83, %84, %85, %86, %87"
#define NAMES_192 FIFTY TEN(5) TEN(6) TEN(7) TEN(8) "%90, %91, %92, %93, %94, %95"
#define NAMES_256 \
    FIFTY TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127"
#define FOUR_SUMS(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define SIXTEEN_SUMS(j) FOUR_SUMS(j), FOUR_SUMS(j + 1), FOUR_SUMS(j + 2), FOUR_SUMS(j + 3)
#define SUMS_64 SIXTEEN_SUMS(0), SIXTEEN_SUMS(4)
#define SUMS_128 SUMS_64, SIXTEEN_SUMS(8), SIXTEEN_SUMS(12)
#define SUMS_176 SUMS_128, SIXTEEN_SUMS(16), FOUR_SUMS(20), FOUR_SUMS(21)
#define SUMS_192 SUMS_128, SIXTEEN_SUMS(16), SIXTEEN_SUMS(20)
#define SUMS_256 SUMS_192, SIXTEEN_SUMS(24), SIXTEEN_SUMS(28)

#define INSTRUCTION(N, K, TYPE) "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TYPE "." TYPE " {" NAMES_##N "}, "

// d (+)= a b, both in shared memory, a [64][32 bytes of K] and b [32 bytes of K][N]; not `add` starts a new sum.
// Either index may be the contiguous one for 16-bit elements, only K for tf32.
#define SHARED_PRODUCT(N, K, TYPE, ELEMENT_TYPE, A, B, ADD, MAJORS)                                                   \
    template <bool AKMajor, bool BKMajor>                                                                             \
    __device__ __forceinline__ void wgmma(float(&d)[N / 8][4], Descriptor a, Descriptor b, bool add, ELEMENT_TYPE) {  \
        static_assert(sizeof(ELEMENT_TYPE) == 2 || (AKMajor && BKMajor), "tf32 operands are K-major");                \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0; " INSTRUCTION(N, K, TYPE) "%" #A ", %" #B          \
                                                                                             ", p, 1, 1" MAJORS "; }" \
                     : SUMS_##N                                                                                       \
                     : "l"(a), "l"(b), "r"((int)add), "n"(!AKMajor), "n"(!BKMajor));                                  \
    }
// d += a b, a in registers as for mma m16n8k16, b in shared memory with contiguous columns.
#define REGISTER_PRODUCT(N, TYPE, ELEMENT_TYPE, A0, A1, A2, A3, B)                                                  \
    __device__ __forceinline__ void wgmma(float(&d)[N / 8][4], const unsigned(&a)[4], Descriptor b, ELEMENT_TYPE) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; " INSTRUCTION(                                           \
                         N, 16, TYPE) "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 1; }"            \
                     : SUMS_##N                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                         \
    }
#define HALF_PRODUCTS(TYPE, ELEMENT_TYPE)                                      \
    SHARED_PRODUCT(64, 16, TYPE, ELEMENT_TYPE, 32, 33, 34, ", %35, %36")       \
    SHARED_PRODUCT(128, 16, TYPE, ELEMENT_TYPE, 64, 65, 66, ", %67, %68")      \
    SHARED_PRODUCT(176, 16, TYPE, ELEMENT_TYPE, 88, 89, 90, ", %91, %92")      \
    SHARED_PRODUCT(192, 16, TYPE, ELEMENT_TYPE, 96, 97, 98, ", %99, %100")     \
    SHARED_PRODUCT(256, 16, TYPE, ELEMENT_TYPE, 128, 129, 130, ", %131, %132") \
    REGISTER_PRODUCT(64, TYPE, ELEMENT_TYPE, 32, 33, 34, 35, 36)               \
    REGISTER_PRODUCT(128, TYPE, ELEMENT_TYPE, 64, 65, 66, 67, 68)
HALF_PRODUCTS("f16", __half)
HALF_PRODUCTS("bf16", __nv_bfloat16)
SHARED_PRODUCT(128, 8, "tf32", float, 64, 65, 66, "")
SHARED_PRODUCT(192, 8, "tf32", float, 96, 97, 98, "")
SHARED_PRODUCT(256, 8, "tf32", float, 128, 129, 130, "")
