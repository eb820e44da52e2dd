// gelu: y = x * p(x), p the distribution function of the standard normal, or (-DTANH=1) its tanh approximation.
#include "activations.cuh"
#include "elementwise.cuh"

struct Value {
    __device__ __forceinline__ float operator()(float x) const { return Gelu::value(x); }
};

ELEMENTWISE(gelu, Value, 1, 1)
