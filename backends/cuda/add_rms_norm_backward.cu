// Gradients of add_rms_norm: those of rms_norm at the total, beside the gradient of the total itself.
// grad_y, grad_total, total, grad_x: [rows, n]; weight, grad_weight: [n].
#include "gradient_of_rms_norm.cuh"

struct AddRmsNormBackward {
    float eps;
    using Row = RmsNormGradient;
    using State = Row::State;
    template <typename Each>
    __device__ __forceinline__ void add(State& s, Each each) const {
        each([&](const float* x, float w) { s.add(x[2], x[0], w); });
    }
    __device__ __forceinline__ Row finish(const State& s, int n) const { return Row::of(s, n, eps); }
    __device__ __forceinline__ void apply(const float* x, float w, const Row& row, float& grad, float* sums) const {
        grad = x[1] + row(x[2], x[0], w, sums[0]);
    }
};

ROW_GRADIENTS(AddRmsNormBackward, 3, 1, 1)
