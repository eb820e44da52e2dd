// rms_norm of rows of any length: y = x * r * weight, r = 1 / sqrt(mean(x^2) + eps). x, y: [rows, n], weight: [n].
#include "row_walks.cuh"

struct RmsNorm {
    float eps;
    using State = OneSum;
    struct Row {
        float r;
    };
    template <typename Each>
    __device__ __forceinline__ void add(State& s, Each each) const {
        each([&](const float* x) { s.sum = fmaf(x[0], x[0], s.sum); });
    }
    __device__ __forceinline__ Row finish(State s, int n) const { return {rsqrtf(__fdividef(s.sum, n) + eps)}; }
    __device__ __forceinline__ void apply(const float* x, const float* w, const Row& row, float* y) const {
        y[0] = x[0] * row.r * w[0];
    }
};

ROW_OPERATOR(RmsNorm, 1, 1, 1, 1)
