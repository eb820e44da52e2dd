// add_rms_norm of rows of any length: total = x + residual, y = rms_norm(total, weight, eps); each is rounded once, and the total
// enters y before it is.
#include "row_walks.cuh"

struct AddRmsNorm {
    float eps;
    using State = OneSum;
    struct Row {
        float r;
    };
    template <typename Each>
    __device__ __forceinline__ void add(State& s, Each each) const {
        each([&](const float* x) { s.sum = fmaf(x[0] + x[1], x[0] + x[1], s.sum); });
    }
    __device__ __forceinline__ Row finish(State s, int n) const { return {rsqrtf(__fdividef(s.sum, n) + eps)}; }
    __device__ __forceinline__ void apply(const float* x, const float* w, const Row& row, float* y) const {
        const float total = x[0] + x[1];
        y[0] = total * row.r * w[0];
        y[1] = total;
    }
};

ROW_OPERATOR(AddRmsNorm, 2, 1, 2, 1)
