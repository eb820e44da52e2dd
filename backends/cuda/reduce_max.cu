// The largest element; NaN if there is one.
#include "reduce.cuh"

struct Largest {
    static __device__ __forceinline__ float identity() { return -infinity(); }
    __device__ __forceinline__ float operator()(float a, float b) const {
        float larger;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));  // fmaxf drops NaN, and flushes subnormal numbers
        return larger;
    }
};

REDUCTION(reduce_max, Values<Largest>)
