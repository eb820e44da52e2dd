// swiglu: y = silu(a) * b, rounded once.
#include "activations.cuh"
#include "elementwise.cuh"

struct Gated {
    __device__ __forceinline__ float operator()(float a, float b) const { return Silu::value(a) * b; }
};

ELEMENTWISE(swiglu, Gated, 2, 1)
