// rope: (a, b) -> (a * cos - b * sin, b * cos + a * sin) for pairs of columns, in fp32 with one rounding.
// A thread takes WIDTH pairs of one row, in HEADS heads: cos and sin are read once for them. y: [B, H, M, 2 * PAIRS].
#include "common.cuh"
#include "dependent_launch.cuh"

#ifndef ELEMENT
#define ELEMENT float
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef HEADS
#define HEADS 4
#endif
#ifndef NEIGHBOURS  // pairs are neighbouring columns, else columns of the two halves
#define NEIGHBOURS 0
#endif
#ifndef INDEX  // counts all units
#define INDEX i64
#endif
#ifndef BLOCK
#define BLOCK 256
#endif

using T = ELEMENT;
using Elements = Vec<T, WIDTH>;

// Offsets in elements from one batch, head and row to the next.
struct Steps {
    i64 x[3], cos[2], sin[2];
};

// The two vectors that hold WIDTH pairs: beside one another, or half a row apart.
__device__ __forceinline__ i64 second_of(int pairs) { return NEIGHBOURS ? WIDTH : pairs; }

__device__ __forceinline__ void turn(Elements& low, Elements& high, const Elements& cos, const Elements& sin) {
    float y[2][WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        // Of neighbours pair i is elements 2i and 2i + 1 of the two vectors, one after the other.
        const int j = NEIGHBOURS ? 2 * i % WIDTH : i, k = NEIGHBOURS ? (2 * i + 1) % WIDTH : i;
        const bool above = NEIGHBOURS && 2 * i >= WIDTH, beyond = NEIGHBOURS ? 2 * i + 1 >= WIDTH : true;
        const float a = to_float(above ? high.v[j] : low.v[j]), b = to_float(beyond ? high.v[k] : low.v[k]);
        const float c = to_float(cos.v[i]), s = to_float(sin.v[i]);
        y[above][j] = a * c - b * s;
        y[beyond][k] = b * c + a * s;
    }
    low = from_floats<T>(y[0]);
    high = from_floats<T>(y[1]);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
rope_heads(
    const T* __restrict__ x, const T* __restrict__ cos, const T* __restrict__ sin, T* __restrict__ y, const Steps steps, i64 units,
    int pairs, i64 rows, int heads, int groups) {
    follow_previous();
    const INDEX unit = blockIdx.x * (INDEX)BLOCK + threadIdx.x;
    if (unit >= units) return;
    const INDEX line = unit / (pairs / WIDTH), rest = line / (INDEX)rows;
    const int at = (int)(unit % (pairs / WIDTH)) * WIDTH;
    const i64 m = line - rest * (INDEX)rows, b = rest / groups;
    const int first = (int)(rest % groups) * HEADS, column = NEIGHBOURS ? 2 * at : at;
    const Elements c = load_constant<WIDTH>(cos + b * steps.cos[0] + m * steps.cos[1] + at);
    const Elements s = load_constant<WIDTH>(sin + b * steps.sin[0] + m * steps.sin[1] + at);
    Elements low[HEADS], high[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h)
        if (first + h < heads) {
            const T* const row = x + b * steps.x[0] + (first + h) * steps.x[1] + m * steps.x[2] + column;
            low[h] = load_constant<WIDTH>(row);
            high[h] = load_constant<WIDTH>(row + second_of(pairs));
        }
#pragma unroll
    for (int h = 0; h < HEADS; ++h)
        if (first + h < heads) {
            T* const row = y + ((b * heads + first + h) * rows + m) * 2 * pairs + column;
            turn(low[h], high[h], c, s);
            store(row, low[h]);
            store(row + second_of(pairs), high[h]);
        }
}
