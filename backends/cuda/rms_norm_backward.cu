// Gradients of rms_norm. grad_out, x, grad_x: [rows, n]; weight, grad_weight: [n].
#include "gradient_of_rms_norm.cuh"

struct RmsNormBackward {
    float eps;
    using Row = RmsNormGradient;
    using State = Row::State;
    template <typename Each>
    __device__ __forceinline__ void add(State& s, Each each) const {
        each([&](const float* x, float w) { s.add(x[1], x[0], w); });
    }
    __device__ __forceinline__ Row finish(const State& s, int n) const { return Row::of(s, n, eps); }
    __device__ __forceinline__ void apply(const float* x, float w, const Row& row, float& grad, float* sums) const {
        grad = row(x[1], x[0], w, sums[0]);
    }
};

ROW_GRADIENTS(RmsNormBackward, 2, 1, 1)
