// geglu: y = gelu(a) * b, rounded once, of the exact gelu or (-DTANH=1) of its tanh approximation.
#include "activations.cuh"
#include "elementwise.cuh"

struct Gated {
    __device__ __forceinline__ float operator()(float a, float b) const { return Gelu::value(a) * b; }
};

ELEMENTWISE(geglu, Gated, 2, 1)
