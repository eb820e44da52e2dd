// The smallest element; NaN if there is one.
#include "reduce.cuh"

struct Smallest {
    static __device__ __forceinline__ float identity() { return infinity(); }
    __device__ __forceinline__ float operator()(float a, float b) const {
        float smaller;
        asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));  // fminf drops NaN, and flushes subnormal numbers
        return smaller;
    }
};

REDUCTION(reduce_min, Values<Smallest>)
