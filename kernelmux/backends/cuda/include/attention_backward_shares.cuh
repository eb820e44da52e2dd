// Walks that the SHARES blocks of a cluster share: each takes every SHARES-th tile, then their sums meet in shared
// memory, which blocks of a cluster read from one another, and are added in the order of the blocks.
#pragma once
#include "attention_backward_wgmma.cuh"

#ifndef SHARES
#define SHARES 1
#endif
#if SHARES > 1
#define CLUSTER __cluster_dims__(SHARES, 1, 1)
#else
#define CLUSTER
#endif

// Sums of a block in shared memory: piece `i` has four values of each thread of two warpgroups.
using Pieces = float4[][256];

__device__ __forceinline__ int share_of_block() {
    if (SHARES == 1) return 0;
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Of `count` tiles, how many this block takes.
__device__ __forceinline__ int shared_out(int count, int share) {
    return SHARES == 1 ? count : max(0, cdiv(count - share, SHARES));
}

// Until all threads of all blocks that share a walk are here; what they wrote to shared memory is there.
__device__ __forceinline__ void share_sync() {
    if (SHARES == 1) {
        __syncthreads();
        return;
    }
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// What lies at the same place of the shared memory of the first block.
__device__ __forceinline__ int of_first_share(const int& x) {
    if (SHARES == 1) return x;
    int found;
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %1, 0; ld.shared::cluster.b32 %0, [there]; }"
                 : "=r"(found)
                 : "r"(shared_address(&x))
                 : "memory");
    return found;
}

// Behind the last use of what lay there, by either warpgroup.
__device__ __forceinline__ void await_warpgroups() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

template <int Count>
__device__ __forceinline__ void leave_sums(Pieces pieces, const float (&sum)[Count][4]) {
#pragma unroll
    for (int i = 0; i < Count; i++)
        pieces[i][threadIdx.x - 128] = make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
}

// This block's part of what all blocks of the cluster left, added: every SHARES-th eight columns of out[row..row + 16).
// Rows at or past `limit` are left out.
__device__ __forceinline__ void add_shares(Element* out, const Pieces pieces, float factor, int row, int limit) {
    row += threadIdx.x % 32 / 4;
#pragma unroll 2
    for (int i = share_of_block(); i < COLUMN_TILES; i += SHARES) {
        float4 x[SHARES];
#pragma unroll
        for (int share = 0; share < SHARES; share++)
            asm volatile(
                "{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; "
                "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
                : "=f"(x[share].x), "=f"(x[share].y), "=f"(x[share].z), "=f"(x[share].w)
                : "r"(shared_address(&pieces[i][threadIdx.x - 128])), "r"(share)
                : "memory");
#pragma unroll
        for (int share = 1; share < SHARES; share++)
            x[0].x += x[share].x, x[0].y += x[share].y, x[0].z += x[share].z, x[0].w += x[share].w;
        const int column = 8 * i + threadIdx.x % 4 * 2;
        unsigned* to = reinterpret_cast<unsigned*>(out + (i64)row * HEAD_DIM + column);
        if (row < limit && column < HEAD_DIM) *to = pair_from_floats<Element>(x[0].x * factor, x[0].y * factor);
        if (row + 8 < limit && column < HEAD_DIM)
            to[4 * HEAD_DIM] = pair_from_floats<Element>(x[0].z * factor, x[0].w * factor);
    }
}
