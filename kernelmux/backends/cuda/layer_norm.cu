// layer_norm of rows of any length: y = (x - mean) * r * weight + bias, r = 1 / sqrt(mean((x - mean)^2) + eps).
// x, y: [rows, n], weight: [n], bias: [n] or missing.
#include "moments.cuh"
#include "row_walks.cuh"

struct LayerNorm {
    float eps;
    using State = Moments;
    struct Row {
        float mean, r;
    };
    template <typename Each>
    __device__ __forceinline__ void add(State& s, Each each) const {
        s.add(each);
    }
    __device__ __forceinline__ Row finish(State s, int n) const { return {s.mean, rsqrtf(__fdividef(s.squares, n) + eps)}; }
    __device__ __forceinline__ void apply(const float* x, const float* w, const Row& row, float* y) const {
        const float z = (x[0] - row.mean) * row.r;
        y[0] = WEIGHTS > 1 ? fmaf(z, w[0], w[WEIGHTS - 1]) : z * w[0];
    }
};

ROW_OPERATOR(LayerNorm, 1, WEIGHTS, 1, 1)
