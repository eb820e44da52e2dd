// silu_backward: grad_x = grad_out * silu'(x).
#include "activations.cuh"
#include "elementwise.cuh"

struct Gradient {
    __device__ __forceinline__ float operator()(float grad_out, float x) const {
        return grad_out * derivative(x, Silu::share(x));
    }
};

ELEMENTWISE(silu_backward, Gradient, 2, 1)
