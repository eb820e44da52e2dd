// softmax of rows of any length: y = exp(scale * (x - m)) / sum(...) along an axis; log_sum_exp.cuh has what sign and factor are.
// The exponentials are computed twice: keeping them as floats takes the registers of a second block per row.
#include "log_sum_exp.cuh"
#include "row_walks.cuh"

struct Softmax {
    float sign, factor;
    using State = LogSumExp;
    struct Row {
        float top, inverse;
    };
    template <typename Each>
    __device__ __forceinline__ void add(State& s, Each each) const {
        s.add(each, sign, factor);
    }
    __device__ __forceinline__ Row finish(State s, int) const { return {sign * s.m, 1.0f / s.sum}; }
    __device__ __forceinline__ void apply(const float* x, const float*, const Row& row, float* y) const {
        y[0] = fast_exp2((x[0] - row.top) * (sign * factor)) * row.inverse;
    }
};

ROW_OPERATOR(Softmax, 1, 0, 1, 2)
