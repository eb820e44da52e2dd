// log_softmax of rows of any length: y = (x - m) - log(sum(exp(x - m))) along an axis.
#include "log_sum_exp.cuh"
#include "row_walks.cuh"

struct LogSoftmax {
    static constexpr float factor = 1.4426950408889634f;  // log2(e)
    using State = LogSumExp;
    struct Row {
        float m, log_sum;
    };
    template <typename Each>
    __device__ __forceinline__ void add(State& s, Each each) const {
        s.add(each, 1.0f, factor);
    }
    __device__ __forceinline__ Row finish(State s, int) const { return {s.m, logf(s.sum)}; }
    __device__ __forceinline__ void apply(const float* x, const float*, const Row& row, float* y) const {
        y[0] = x[0] - row.m - row.log_sum;
    }
};

ROW_OPERATOR(LogSoftmax, 1, 0, 1, 0)
