// Windows by 32-bit words: an element of fp32, or a pair of 16-bit elements that are compared at once, each half for its
// own window.
//
// Beside the best so far stands its place, an offset from where the windows begin in the image: 32 bits, or 16 for each
// half. A NaN is no best: whatever comes next takes its place. Windows with NaN are done again, by last_nan().
#pragma once

#include "windows.cuh"

constexpr int Halves = 4 / sizeof(T);  // elements of a word

// -inf in each half.
__device__ __forceinline__ constexpr unsigned lowest_word(float) { return 0xff800000u; }
__device__ __forceinline__ constexpr unsigned lowest_word(__half) { return 0xfc00fc00u; }
__device__ __forceinline__ constexpr unsigned lowest_word(__nv_bfloat16) { return 0xff80ff80u; }

// The same place for each half.
__device__ __forceinline__ constexpr unsigned in_halves(int place) {
    return Halves == 2 ? (unsigned)place * 0x10001u : (unsigned)place;
}

// The place of one half, above `base`.
template <int Half>
__device__ __forceinline__ int place_of(unsigned places, int base) {
    if constexpr (Halves == 1) return base + (int)places;
    else return base + (int)(Half ? places >> 16 : places & 0xffffu);
}

template <typename Pair>
__device__ __forceinline__ void take_larger(unsigned& best, unsigned& place, unsigned x, unsigned at, Pair) {
    const unsigned larger = __hgtu2_mask(bits<Pair>(x), bits<Pair>(best));
    best = (larger & x) | (~larger & best);
    place = (larger & at) | (~larger & place);
}
__device__ __forceinline__ void take_larger(unsigned& best, unsigned& place, unsigned x, unsigned at, float) {
    asm("{\n.reg .pred p;\nsetp.gtu.f32 p, %2, %4;\nselp.b32 %0, %2, %4, p;\nselp.b32 %1, %3, %5, p;\n}"
        : "=&r"(best), "=r"(place)
        : "r"(x), "r"(at), "r"(best), "r"(place));
}

template <typename Any> struct WordOf { using type = float; };
template <> struct WordOf<__half> { using type = __half2; };
template <> struct WordOf<__nv_bfloat16> { using type = __nv_bfloat162; };
using Word = typename WordOf<T>::type;

// The best element of the windows of a word, and where it stands.
struct Best {
    unsigned value, place;

    __device__ __forceinline__ void meet(unsigned x, unsigned at) { take_larger(value, place, x, at, Word()); }
    __device__ __forceinline__ void meet(const Best& other, unsigned further) { meet(other.value, other.place + further); }
};

__device__ __forceinline__ float sum_of(float a, float b) { return add_gradual(a, b); }
template <typename Pair>
__device__ __forceinline__ Pair sum_of(Pair a, Pair b) { return __hadd2(a, b); }
__device__ __forceinline__ bool has_nan(float x) { return isnan(x); }
template <typename Pair>
__device__ __forceinline__ bool has_nan(Pair x) { return isnan(to_float(x.x)) || isnan(to_float(x.y)); }

// A sum of words, NaN if one of them is: an addition costs less than a comparison. Infinities of both signs give NaN too.
struct Watch {
    Word sum = bits<Word>(0u);

    __device__ __forceinline__ void add(unsigned word) { sum = sum_of(sum, bits<Word>(word)); }
    __device__ __forceinline__ bool nan() const { return has_nan(sum); }
};

// Of a window with NaN: the last one. Of others nothing changes.
__device__ __forceinline__ void last_nan(T* y, int* index, const Geometry& g, const T* image, int top, int left) {
#pragma unroll 1
    for (int h = max(top, 0); h < min(top + g.kh(), g.h); ++h)
#pragma unroll 1
        for (int w = max(left, 0); w < min(left + g.kw(), g.w); ++w) {
            const T x = image[h * g.strides[2] + w * g.strides[3]];
            if (isnan(to_float(x))) *y = x, *index = h * g.w + w;
        }
}
