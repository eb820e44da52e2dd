// Where the largest element is: the first of equals, the first NaN if there is one.
#include "extremum.cuh"

struct Larger {
    static __device__ __forceinline__ float identity() { return -infinity(); }
    // Whether b beats a: b > a, or b is NaN and a is not. The comparisons of C++ would take subnormal numbers for 0.
    __device__ __forceinline__ bool operator()(float a, float b) const {
        int beats;
        asm("{\n.reg .pred number, p;\nsetp.num.f32 number, %1, %1;\nsetp.gtu.and.f32 p, %2, %1, number;\n"
            "selp.s32 %0, 1, 0, p;\n}"
            : "=r"(beats)
            : "f"(a), "f"(b));
        return beats;
    }
    static __device__ __forceinline__ float of(float a, float b) {
        float larger;
        asm(OR_NAN("max") : "=f"(larger) : "f"(a), "f"(b));
        return larger;
    }
};

REDUCTION(argmax, Indexed<Larger>)
