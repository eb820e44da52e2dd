// silu: y = x / (1 + exp(-x)), 0 at -inf.
#include "activations.cuh"
#include "elementwise.cuh"

struct Value {
    __device__ __forceinline__ float operator()(float x) const { return Silu::value(x); }
};

ELEMENTWISE(silu, Value, 1, 1)
