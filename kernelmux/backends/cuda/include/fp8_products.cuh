// The sums of an fp8 product: promoted to fp32 every 128 of K or not, scaled, and rounded once.
//
//   -DA_FORMAT=e4m3 or e5m2   -DB_FORMAT   the formats of the operands
//   -DSCALES_A=kind  -DSCALES_B=kind       0: one for all, 1: of each row of a (column of b), 2: of each 128 of K (and of N)
//   -DPROMOTES=0 or 1                      sums go on in fp32 after each 128 of K; scales of blocks need that
#pragma once
#include "matmul.cuh"

constexpr int ONE = 0, LINES = 1, BLOCKS = 2, SCALED_LENGTH = 128;
static_assert(PROMOTES || (SCALES_A != BLOCKS && SCALES_B != BLOCKS), "scales of blocks are applied where sums are promoted");

#define QUOTED(x) #x
#define STRING(x) QUOTED(x)
#define FORMATS STRING(A_FORMAT) "." STRING(B_FORMAT)

// x * left * right, by the product of both where that is a normal number: x passes beyond fp32 on the way only if the result
// does. Else one after the other: 0 times two scales whose product is infinite stays 0.
struct Factor {
    float first, second;

    __device__ __forceinline__ Factor(float left, float right) {
        const float both = left * right, size = fabsf(both);
        const bool normal = size >= 0x1p-126f && size < infinity();
        first = normal ? both : left;
        second = normal ? 1.0f : right;
    }
    __device__ __forceinline__ float operator()(float x) const { return x * first * second; }
};

// scale_a and scale_b; rows, columns and groups may lie outside of the operands, where scales are 0.
struct Scales {
    const float *a, *b;
    int M, N, groups;

    __device__ __forceinline__ Scales(const float* a, const float* b, int M, int N, int K)
        : a(a), b(b), M(M), N(N), groups(cdiv(K, SCALED_LENGTH)) {}

    // Of row (column) and the 128 of K with this number, which the sum over these is multiplied by before it is promoted.
    __device__ __forceinline__ float of_row(int row, int group) const {
        return row < M && group < groups ? __ldg(a + (i64)row * groups + group) : 0.0f;
    }
    __device__ __forceinline__ float of_column(int column, int group) const {
        const bool inside = column < N && group < groups;
        return inside ? __ldg(b + (i64)group * cdiv(N, SCALED_LENGTH) + column / SCALED_LENGTH) : 0.0f;
    }
    __device__ __forceinline__ Factor of_part(int row, int column, int group) const {
        return {SCALES_A == BLOCKS ? of_row(row, group) : 1.0f, SCALES_B == BLOCKS ? of_column(column, group) : 1.0f};
    }

    // What the whole sum is multiplied by.
    __device__ __forceinline__ float of_row(int row) const {
        if constexpr (SCALES_A == BLOCKS) return 1.0f;
        return SCALES_A == ONE ? __ldg(a) : row < M ? __ldg(a + row) : 0.0f;
    }
    __device__ __forceinline__ float of_column(int column) const {
        if constexpr (SCALES_B == BLOCKS) return 1.0f;
        return SCALES_B == ONE ? __ldg(b) : column < N ? __ldg(b + column) : 0.0f;
    }
};
