// gelu: y = x * Phi(x), Phi the distribution function of the standard normal, or its tanh approximation (-DTANH=1).
#include "activations.cuh"
#include "elementwise.cuh"

struct Value {
    __device__ __forceinline__ float operator()(float x) const { return Gelu::value(x); }
};

ELEMENTWISE(gelu, Value, 1, 1)
