// Kernels from [n, C, TAPS] to [n, TAPS, C], or the reverse if BACK, both dense: few numbers on one side, for which tiles of a
// transpose would be empty but for a few columns. A block turns CHUNK channels of one n in shared memory.
#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT unsigned short
#endif
#ifndef TAPS
#define TAPS 9
#define CHUNK 256  // a multiple of 8
#define BACK 0
#define THREADS 128
#endif

using T = ELEMENT;
constexpr int VECTOR = 16 / sizeof(T);
using Elements = Vec<T, VECTOR>;

// C: a multiple of VECTOR. blocks: of one n. pitch: from a tap to the next one, in [n, TAPS, C].
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_taps(const T* __restrict__ x, T* __restrict__ y, int C, int blocks, i64 pitch) {
    __shared__ __align__(16) T tile[CHUNK * TAPS];  // [channel, tap]
    const i64 n = blockIdx.x / blocks;
    const int first = blockIdx.x % blocks * CHUNK, count = min(CHUNK, C - first), vectors = count / VECTOR;
    const i64 taps = n * TAPS * pitch + first, dense = (n * C + first) * TAPS;
    for (int i = threadIdx.x; i < vectors * TAPS; i += THREADS) {
        if (BACK) {
            const int t = i / vectors, c = i % vectors * VECTOR;
            const Elements some = load_constant<VECTOR>(x + taps + t * pitch + c);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) tile[(c + j) * TAPS + t] = some.v[j];
        } else {
            store(tile + i * VECTOR, load_constant<VECTOR>(x + dense + i * VECTOR));
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < vectors * TAPS; i += THREADS) {
        if (BACK) {
            store(y + dense + i * VECTOR, load<VECTOR>(tile + i * VECTOR));
        } else {
            const int t = i / vectors, c = i % vectors * VECTOR;
            Elements some;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) some.v[j] = tile[(c + j) * TAPS + t];
            store(y + taps + t * pitch + c, some);
        }
    }
}
