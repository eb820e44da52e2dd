// Kernels from [n, C, TAPS] to [n, TAPS, C], or the reverse if BACK, both dense: few numbers on one side, for which tiles
// of a transpose would be empty but for a few columns. A thread turns VECTOR channels in its registers.
#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT unsigned short
#endif
#ifndef TAPS
#define TAPS 9
#define BACK 0
#define THREADS 128
#endif

using T = ELEMENT;
constexpr int VECTOR = 16 / sizeof(T);
using Elements = Vec<T, VECTOR>;

// vectors: of channels, of all n; `each` of one. pitch: from a tap to the next one, in [n, TAPS, C].
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_taps(const T* __restrict__ x, T* __restrict__ y, i64 vectors, int each, i64 pitch) {
    const i64 vector = blockIdx.x * (i64)THREADS + threadIdx.x;
    if (vector >= vectors) return;
    const i64 n = vector / each, side_by_side = vector * VECTOR * TAPS;
    const i64 apart = n * TAPS * pitch + (vector - n * each) * VECTOR;
    Elements from[TAPS], to[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; t++)
        from[t] = load_constant<VECTOR>(x + (BACK ? apart + t * pitch : side_by_side + t * VECTOR));
#pragma unroll
    for (int c = 0; c < VECTOR; c++)
#pragma unroll
        for (int t = 0; t < TAPS; t++) {
            const int i = c * TAPS + t;
            if (BACK) to[i / VECTOR].v[i % VECTOR] = from[t].v[c];
            else to[t].v[c] = from[i / VECTOR].v[i % VECTOR];
        }
#pragma unroll
    for (int t = 0; t < TAPS; t++) store(y + (BACK ? side_by_side + t * VECTOR : apart + t * pitch), to[t]);
}
