// log_softmax_backward of rows of any length: grad_x = grad_out - exp(y) * sum(grad_out) along an axis.
#include "row_walks.cuh"

struct LogSoftmaxBackward {
    using State = OneSum;
    struct Row {
        float sum;
    };
    template <typename Each>
    __device__ __forceinline__ void add(State& s, Each each) const {
        each([&](const float* x) { s.sum += x[0]; });
    }
    __device__ __forceinline__ Row finish(State s, int) const { return {s.sum}; }
    __device__ __forceinline__ void apply(const float* x, const float*, const Row& row, float* grad) const {
        grad[0] = fmaf(-expf(x[1]), row.sum, x[0]);
    }
};

ROW_OPERATOR(LogSoftmaxBackward, 2, 0, 1, 0)
