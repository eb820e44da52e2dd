// How blocks add their parts of a sum to global memory, in an order or in none.
#pragma once
#include "hopper.cuh"

// Ordinary accesses before are ordered with those of the copy engine and the tensor cores behind; that of shared memory
// alone does not wait for global memory.
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ __forceinline__ void shared_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Adds floats in shared memory to those in global memory, or stores them there; sizes in bytes, multiples of 16.
__device__ __forceinline__ void bulk_add(float* to, const float* from, int bytes) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
        "cp.async.bulk.commit_group;" ::"l"(to),
        "r"(shared_address(from)), "r"(bytes)
        : "memory");
}

__device__ __forceinline__ void bulk_store(float* to, const float* from, int bytes) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
        "cp.async.bulk.commit_group;" ::"l"(to),
        "r"(shared_address(from)), "r"(bytes)
        : "memory");
}

// Until this thread's copies have read shared memory, and until they have arrived.
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulk_wait_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Until `count` blocks have released this counter; what they wrote before is there.
__device__ __forceinline__ void await(const int* counter, int count) {
    int seen;
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while (seen != count);
    proxy_fence();
}

__device__ __forceinline__ void release_one(int* counter) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}
