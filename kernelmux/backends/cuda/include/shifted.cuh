// What lies across two aligned pieces of memory.
#pragma once

#include "common.cuh"

// The piece that begins `by` bytes, a multiple of Unit, behind the beginning of low; high follows low. Pieces are 8 or 16 bytes.
template <int Unit, typename Piece>
__device__ __forceinline__ Piece shifted(const Piece& low, const Piece& high, int by) {
    constexpr int WORDS = sizeof(Piece) / 4;
    unsigned w[2 * WORDS];
    memcpy(w, &low, sizeof(low));
    memcpy(w + WORDS, &high, sizeof(high));
#pragma unroll
    for (int step = WORDS / 2; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i + step < 2 * WORDS; ++i) w[i] = by & 4 * step ? w[i + step] : w[i];
#pragma unroll
    for (int i = 0; i < WORDS; ++i) w[i] = Unit % 4 == 0 ? w[i] : __funnelshift_r(w[i], w[i + 1], 8 * (by & 3));
    Piece found;
    memcpy(&found, w, sizeof(found));
    return found;
}
