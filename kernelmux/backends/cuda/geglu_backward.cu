// geglu_backward: grad_a = grad_out * b * gelu'(a), grad_b = grad_out * gelu(a), in one pass.
#include "activations.cuh"
#include "elementwise.cuh"

struct Gradients {
    __device__ __forceinline__ Floats<2> operator()(float grad_out, float a, float b) const {
        const Share p = Gelu::share(a);
        return {grad_out * b * derivative(a, p), grad_out * Gelu::value(a, p)};
    }
};

ELEMENTWISE(geglu_backward, Gradients, 3, 2)
