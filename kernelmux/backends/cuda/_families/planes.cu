// Lines of fp32 as planes of bf16 (planes.cuh), one behind the other.
#include "dependent_launch.cuh"
#include "planes.cuh"

#ifndef VECTOR  // elements per load; divides the leading dimension, the length and the address
#define VECTOR 1
#endif

constexpr int THREADS = 256, UNIT = 8;  // elements of a store to each plane

// Line i of x, `length` elements, becomes line i of y: three planes of `plane` elements one behind the other, zeros beyond
// the length. `ld` and `apart` are the distances of lines and of matrices of `rows` lines. Block i says in flags[i] whether it
// met a number that planes cannot hold.
extern "C" __global__ void __launch_bounds__(THREADS)
    split_to_planes(const float* __restrict__ x, __nv_bfloat16* __restrict__ y, int* __restrict__ flags, int units,
                    int length, int plane, int rows, i64 ld, i64 apart) {
    let_next_start();
    const int per_line = plane / UNIT;
    bool found = false;
    for (int unit = blockIdx.x * THREADS + threadIdx.x; unit < units; unit += gridDim.x * THREADS) {
        const int line = unit / per_line, at = unit % per_line * UNIT;
        const float* from = x + line / rows * apart + line % rows * ld + at;
        float held[UNIT];
#pragma unroll
        for (int i = 0; i < UNIT; i += VECTOR) {
            Vec<float, VECTOR> values = {};
            if (at + i < length) values = load_constant<VECTOR>(from + i);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                found |= beyond_planes(values.v[v]);
                held[i + v] = scaled_for_planes(values.v[v]);
            }
        }
        store_planes(y + (i64)line * 3 * plane + at, plane, held);
    }
    found = __syncthreads_or(found);
    if (threadIdx.x == 0) flags[blockIdx.x] = found;
    if constexpr (FOLLOWS) wait_for_previous();  // what comes behind waits for this launch alone
}
