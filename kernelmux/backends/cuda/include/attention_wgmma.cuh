// The two products of attention for the 64 rows of a warpgroup, in flight on return. Panels are 64 columns wide.
#pragma once
#include "attention_warpgroup.cuh"

// s = Q K^T, of the rows of q from first_row on. [64, HEAD_DIM] x [KEYS, HEAD_DIM]^T
template <int COUNT, int ROWS, int KEYS>
__device__ __forceinline__ void multiply_keys(float (&s)[KEYS / 8][4], const Element (&q)[COUNT][ROWS][64],
                                              const Element (&k)[COUNT][KEYS][64], int first_row) {
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < (HEAD_DIM + 15) / 16 * 16; d += 16)
        wgmma<true, true>(s, descriptor_behind(q[0][first_row], 0, d / 64 * ROWS * 128 + d % 64 * 2),
                          descriptor_behind(k, 0, d / 64 * KEYS * 128 + d % 64 * 2), d != 0, Element());
    wgmma_commit();
}

// o += P V. [64, KEYS] x [KEYS, HEAD_DIM]
template <int COUNT, int KEYS, int SUMS>
__device__ __forceinline__ void multiply_values(float (&o)[SUMS][4], unsigned (&p)[KEYS / 16][4],
                                                const Element (&v)[COUNT][KEYS][64]) {
    pin(o), pin(p);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < KEYS; n += 16) wgmma(o, p[n / 16], descriptor_behind(v, KEYS * 128, n * 128), Element());
    wgmma_commit();
}
