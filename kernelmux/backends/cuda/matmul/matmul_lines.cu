// Copies of matrices whose lines begin at multiples of 128 bytes, as the copy engine likes them. The lines that are read
// may begin anywhere: a thread reads the two aligned vectors that hold the elements of one that it stores.
#include "matmul.cuh"
#include "dependent_launch.cuh"

#ifndef UNITS  // vectors of a thread
#define UNITS 4
#endif
#ifndef ACROSS  // threads that have a line in common
#define ACROSS 256
#endif

constexpr int THREADS = 256, WIDTH = 16 / sizeof(Element);  // elements of a vector

// The vector that begins `behind` elements after the first of two.
__device__ __forceinline__ uint4 shifted(const uint4& left, const uint4& right, int behind) {
    const unsigned bits = behind * sizeof(Element) * 8;
    unsigned words[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
#pragma unroll
    for (int i = 0; i < 6; i++) words[i] = bits & 64 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < 5; i++) words[i] = bits & 32 ? words[i + 1] : words[i];
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = __funnelshift_r(words[i], words[i + 1], bits & 31);
    return {words[0], words[1], words[2], words[3]};
}

// The vector that begins with element k of a line; what is beside the line is zero.
__device__ __forceinline__ uint4 vector_of(const Element* line, int k, int length) {
    if (k >= 0 && k + WIDTH <= length) return __ldg(reinterpret_cast<const uint4*>(line + k));
    Vec<Element, WIDTH> found;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const bool inside = k + i >= 0 && k + i < length;
        found.v[i] = inside ? __ldg(line + k + i) : from_float<Element>(0.0f);
    }
    return bits<uint4>(found);
}

// Line i of x becomes line i of y, `length` elements and zeros up to the pitch. `ld` and `apart` are the distances of lines
// and of matrices of `rows` lines.
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_lines(const Element* __restrict__ x, Element* __restrict__ y, i64 lines, int pieces, int length, int pitch,
                 int rows, i64 ld, i64 apart) {
    let_next_start();
    const i64 line = (i64)(blockIdx.x / pieces) * (THREADS / ACROSS) + threadIdx.x / ACROSS;
    const int first = blockIdx.x % pieces * UNITS * ACROSS + threadIdx.x % ACROSS;
    if (line >= lines) return;
    const Element* from = x + line / rows * apart + line % rows * ld;
    const int behind = (unsigned long long)from % 16 / sizeof(Element);
    uint4 left[UNITS], right[UNITS];
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
        const int k = (first + i * ACROSS) * WIDTH - behind;
        left[i] = vector_of(from, k, length);
        if (behind) right[i] = vector_of(from, k + WIDTH, length);
    }
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
        const int at = (first + i * ACROSS) * WIDTH;
        if (at < pitch) *reinterpret_cast<uint4*>(y + line * pitch + at) = shifted(left[i], right[i], behind);
    }
}
