// fp32 as three planes of bf16, whose sum it is: x * 2^24 = x1 + x2 + x3, each the nearest bf16 of what is left.
//
// bf16 has the exponents of fp32 but 8 digits, and three planes have all 24. Scaled so, numbers from 2^-134 on lose no digit
// (the last one of the third plane is 2^-133 at least). What is smaller, larger than 2^28, infinite or no number is found
// here, and a launch behind the product (guard.cuh) computes all of it the plain way.
#include "common.cuh"
#include "dependent_launch.cuh"

#ifndef VECTOR  // elements per load; divides the leading dimension, the length and the address
#define VECTOR 1
#endif

constexpr int THREADS = 256, UNIT = 8;  // elements of a store to each plane
constexpr float SCALE = 16777216.0f;
constexpr unsigned SMALLEST = 1 << 15, LARGEST = (127 + 28) << 23;  // as bits: 2^-134 and 2^28

using Values = Vec<float, VECTOR>;
using Plane = Vec<__nv_bfloat16, UNIT>;

__device__ __forceinline__ bool beyond(float x) {
    const unsigned size = bits<unsigned>(x) & 0x7fffffff;
    return size > LARGEST || size - 1 < SMALLEST - 1;  // 0 is neither
}

__device__ __forceinline__ float scaled(float x) {
    float y;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(SCALE));  // of subnormal numbers too
    return y;
}

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
        float left[UNIT];
#pragma unroll
        for (int i = 0; i < UNIT; i += VECTOR) {
            Values values = {};
            if (at + i < length) values = load_constant<VECTOR>(from + i);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                found |= beyond(values.v[v]);
                left[i + v] = scaled(values.v[v]);
            }
        }
        __nv_bfloat16* to = y + (i64)line * 3 * plane + at;
#pragma unroll
        for (int p = 0; p < 3; p++) {
            const Plane held = from_floats<__nv_bfloat16>(left);
            store(to + p * plane, held);
            float taken[UNIT];
            to_floats(taken, held);
#pragma unroll
            for (int i = 0; i < UNIT; i++) left[i] = add_gradual(left[i], -taken[i]);
        }
    }
    found = __syncthreads_or(found);
    if (threadIdx.x == 0) flags[blockIdx.x] = found;
    if constexpr (FOLLOWS) wait_for_previous();  // what comes behind waits for this launch alone
}
