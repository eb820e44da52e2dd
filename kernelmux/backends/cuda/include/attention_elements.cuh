// What attention and its gradient share: the numbers that they are compiled for, and how a fragment's rows are stored.
#pragma once
#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT __nv_bfloat16
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif

using Element = ELEMENT;

// The quad's 4 x 4 words [tile][lane] transposed: each lane ends with the four words of its own tile.
__device__ __forceinline__ void transpose_quad(unsigned (&word)[4]) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j & step) continue;
            const unsigned received = __shfl_xor_sync(0xffffffffu, upper ? word[j] : word[j + step], step);
            if (upper)
                word[j] = received;
            else
                word[j + step] = received;
        }
    }
}

// One row of a quad, times `factor`, to `to`; a quad writes 64 adjacent bytes at a time. Lanes of other quads may have
// nothing to store.
template <int TILES>
__device__ __forceinline__ void store_row(Element* to, bool stored, const float (&o)[TILES][4], int r, float factor) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TILES; i += 4) {
        unsigned word[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float(&tile)[4] = o[min(i + j, TILES - 1)];  // a tile past the last one is not stored
            word[j] = pair_from_floats<Element>(tile[2 * r] * factor, tile[2 * r + 1] * factor);
        }
        transpose_quad(word);
        const int column = 8 * (i + lane % 4);
        if (stored && (8 * i + 32 <= HEAD_DIM || column < HEAD_DIM))
            *reinterpret_cast<uint4*>(to + column) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}
