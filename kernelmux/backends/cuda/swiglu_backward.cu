// swiglu_backward: grad_a = grad_out * b * silu'(a), grad_b = grad_out * silu(a), in one pass.
#include "activations.cuh"
#include "elementwise.cuh"

struct Gradients {
    __device__ __forceinline__ Floats<2> operator()(float grad_out, float a, float b) const {
        const Share p = Silu::share(a);
        return {grad_out * b * derivative(a, p), grad_out * Silu::value(a, p)};
    }
};

ELEMENTWISE(swiglu_backward, Gradients, 3, 2)
