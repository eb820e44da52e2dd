// Tensor-core products of a warp, and the copies that feed them. Places in shared memory are 32-bit addresses: half the
// registers and half the arithmetic of pointers. sm_75 multiplies halves of fp16 alone, and its copies have arrived on return.
#pragma once
#include "common.cuh"

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

#if __CUDA_ARCH__ >= 800
// Starts copying Bytes from global to shared memory; not `inside`, nothing is read and zeros arrive. Pieces of 2 bytes,
// for which there is no asynchronous copy, have arrived on return.
template <int Bytes>
__device__ __forceinline__ void copy_async(unsigned to, const void* from, bool inside) {
    if constexpr (Bytes == 2)
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to),
                     "h"(inside ? *static_cast<const unsigned short*>(from) : (unsigned short)0)
                     : "memory");
    else if constexpr (Bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Bytes),
                     "r"(inside ? Bytes : 0)
                     : "memory");
}

// Closes a group of copies; an empty one counts too.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most Pending groups of this thread are under way.
template <int Pending>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
#else
template <int Bytes>
__device__ __forceinline__ void copy_async(unsigned to, const void* from, bool inside) {
    using Raw = typename Access<Bytes>::type;
    const Raw x = inside ? *static_cast<const Raw*>(from) : Raw{};
    if constexpr (Bytes == 16)
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
    else if constexpr (Bytes == 8) asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(x.x), "r"(x.y) : "memory");
    else if constexpr (Bytes == 4) asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
    else asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
}
__device__ __forceinline__ void copy_async_commit() {}
template <int Pending>
__device__ __forceinline__ void copy_async_wait() {}
#endif

__device__ __forceinline__ unsigned load_word(unsigned address) {
    unsigned word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}

// Four 8x8 matrices of 16-bit elements (or 8x4 of 32 bits); lane l gives the address of 16-byte row l % 8 of matrix l /
// 8 and receives the elements 2 (l % 4) and the next of row l / 4, Transposed: of column l / 4.
template <bool Transposed>
__device__ __forceinline__ void load_matrices(unsigned (&x)[4], unsigned row) {
    if constexpr (Transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(row)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(row)
                     : "memory");
}

// d[16][8] += a[16][K] b[K][8], K being 32 bytes of elements; the last argument says of which type.
#define MMA(SHAPE, TYPE)                                                                \
    asm volatile("mma.sync.aligned." SHAPE ".row.col.f32." TYPE "." TYPE                \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __half) {
#if __CUDA_ARCH__ >= 800
    MMA("m16n8k16", "f16");
#else  // the first 8 of K, then the others
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(i ? b1 : b0));
#endif
}
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __nv_bfloat16) {
    MMA("m16n8k16", "bf16");
}
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float) {
    MMA("m16n8k8", "tf32");
}
#undef MMA

// The nearest tf32, ties away from zero; without it the tensor cores cut the last 13 bits off.
__device__ __forceinline__ unsigned round_to_tf32(unsigned fp32) {
    unsigned tf32;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(tf32) : "f"(__uint_as_float(fp32)));
    return tf32;
}
