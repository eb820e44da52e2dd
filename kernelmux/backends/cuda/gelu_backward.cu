// gelu_backward: grad_x = grad_out * gelu'(x), of the exact form or (-DTANH=1) of the tanh approximation.
#include "activations.cuh"
#include "elementwise.cuh"

struct Gradient {
    __device__ __forceinline__ float operator()(float grad_out, float x) const {
        return grad_out * derivative(x, Gelu::share(x));
    }
};

ELEMENTWISE(gelu_backward, Gradient, 2, 1)
