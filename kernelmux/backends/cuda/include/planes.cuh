// A number of fp32 as three of bf16, whose sum it is: x * 2^24 = x1 + x2 + x3, each the nearest bf16 of what is left.
//
// bf16 has the exponents of fp32 but 8 digits, and three have all 24. Scaled so, numbers from 2^-134 on lose no digit (the
// last one of the third is 2^-133 at least). What is smaller, larger than 2^28, infinite or no number is found here, and a
// launch behind the product (guard.cuh) computes all of it the plain way.
#pragma once
#include "common.cuh"

// As bits: 2^-134 and 2^28; 0 is in no need of digits.
__device__ __forceinline__ bool beyond_planes(float x) {
    const unsigned size = bits<unsigned>(x) & 0x7fffffff;
    return size > (127 + 28) << 23 || size - 1 < (1 << 15) - 1;
}

__device__ __forceinline__ float scaled_for_planes(float x) {
    float y;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(16777216.0f));  // of subnormal numbers too
    return y;
}

// Neighbours, scaled already, to three planes that are `plane` elements apart.
template <int Width>
__device__ __forceinline__ void store_planes(__nv_bfloat16* to, int plane, float (&left)[Width]) {
#pragma unroll
    for (int p = 0; p < 3; p++) {
        const Vec<__nv_bfloat16, Width> held = from_floats<__nv_bfloat16>(left);
        store(to + p * (i64)plane, held);
        float taken[Width];
        to_floats(taken, held);
#pragma unroll
        for (int i = 0; i < Width; i++) left[i] = add_gradual(left[i], -taken[i]);
    }
}
