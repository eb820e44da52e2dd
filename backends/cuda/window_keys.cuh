// Elements of 16 bits as integers: one comparison finds the largest of a window and the first of equals.
//
// A key is an element, as a signed integer in its order, above 16 bits that are smaller the later the element comes in its
// window, row by row: the complement of row * KeyRow + column.
#pragma once

#include "windows.cuh"

#if ROWS
__device__ __forceinline__ constexpr unsigned lowest_pair(__half) { return 0xfc00fc00u; }  // -inf, twice
__device__ __forceinline__ constexpr unsigned lowest_pair(__nv_bfloat16) { return 0xff80ff80u; }
constexpr int KeyRow = 64, LowestKey = -1 - 0x7fffffff;

// Two elements as signed 16-bit integers in their order: -0 is 0, NaN is above infinity.
__device__ __forceinline__ unsigned ordered(unsigned pair, __half) {
    return bits<unsigned>(__hadd2(bits<__half2>(pair), bits<__half2>(0u)));
}
__device__ __forceinline__ unsigned ordered(unsigned pair, __nv_bfloat16) {
    return bits<unsigned>(__hadd2(bits<__nv_bfloat162>(pair), bits<__nv_bfloat162>(0u)));
}
__device__ __forceinline__ unsigned ordered(unsigned pair) {
    const unsigned sum = ordered(pair, T());
    unsigned negative;  // each half all ones or all zeros
    asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(negative) : "r"(sum));
    return sum ^ (negative & 0x7fff7fffu);
}

// The key of one half of such a pair.
__device__ __forceinline__ int key_of(unsigned pair, bool upper, int row, int column) {
    const unsigned place = 0xffffu - (unsigned)(row * KeyRow + column);
    return (int)(upper ? __byte_perm(pair, place, 0x3254) : __byte_perm(pair, place, 0x1054));
}

constexpr int FirstNaN = 0x7fff0000;  // and every key above it: a NaN, but the first where the last is asked for
__device__ __forceinline__ bool is_zero(int key) { return (unsigned)key < 0x10000u; }

// Position h * W + w of the element of a key whose row and column are counted from (top, left). Rows before the image stand for
// its first one.
__device__ __forceinline__ int position(const Geometry& g, int key, int top, int left) {
    const int row = (~key & 0xffff) / KeyRow, column = ~key & (KeyRow - 1);
    return max(top + row, 0) * g.w + (left + column);
}

// The elements of two keys, low half first; of zeros the positive one.
__device__ __forceinline__ unsigned elements(int low, int high) {
    const unsigned pair = __byte_perm((unsigned)low, (unsigned)high, 0x7632);
    unsigned negative;
    asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(negative) : "r"(pair));
    return pair ^ (negative & 0x7fff7fffu);
}

// Of a window with NaN: the last one.
__device__ __forceinline__ void last_nan(T* y, int* index, const Geometry& g, const T* image, int top, int left) {
#pragma unroll 1
    for (int h = max(top, 0); h < min(top + g.kh(), g.h); ++h)
#pragma unroll 1
        for (int w = max(left, 0); w < min(left + g.kw(), g.w); ++w) {
            const T x = image[h * g.w + w];
            if (isnan(to_float(x))) *y = x, *index = h * g.w + w;
        }
}
#endif
