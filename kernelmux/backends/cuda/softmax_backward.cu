// softmax_backward of rows of any length: grad_x = scale * y * (grad_out - sum(grad_out * y)) along an axis.
#include "row_walks.cuh"

struct SoftmaxBackward {
    float scale;
    using State = OneSum;
    struct Row {
        float dot;
    };
    template <typename Each>
    __device__ __forceinline__ void add(State& s, Each each) const {
        each([&](const float* x) { s.sum = fmaf(x[0], x[1], s.sum); });
    }
    __device__ __forceinline__ Row finish(State s, int) const { return {s.sum}; }
    __device__ __forceinline__ void apply(const float* x, const float*, const Row& row, float* grad) const {
        grad[0] = scale * x[1] * (x[0] - row.dot);
    }
};

ROW_OPERATOR(SoftmaxBackward, 2, 0, 1, 1)
