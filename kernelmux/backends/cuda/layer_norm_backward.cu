// Gradients of layer_norm, y = z * weight + bias, z = (x - mean) * r. grad_out, x, grad_x: [rows, n]; the others: [n].
//   grad_x      = r * (g * weight - mean(g * weight) - z * mean(g * weight * z))
//   grad_weight = sum over the rows of g * z,  grad_bias = sum over the rows of g
#include "moments.cuh"
#include "row_gradients.cuh"

struct LayerNormBackward {
    float eps;
    struct State {
        Moments x;
        float g = 0.0f, dot = 0.0f;  // sums of g * weight and of g * weight * (x - mean)
    };
    struct Row {
        float mean, r, g, dot;
    };
    template <typename Each>
    __device__ __forceinline__ void add(State& s, Each each) const {
        const float before = s.x.mean;
        s.x.add([&](auto f) { each([&](const float* x, float) { f(x + 1); }); });
        s.dot = fmaf(before - s.x.mean, s.g, s.dot);
        each([&](const float* x, float w) {
            s.g = fmaf(x[0], w, s.g);
            s.dot = fmaf(x[0] * w, x[1] - s.x.mean, s.dot);
        });
    }
    // In two steps: the means, then what each thread has around the mean of them all instead of its own.
    template <typename Total>
    __device__ __forceinline__ State together(const State& s, int n, Total& total) const {
        float means[] = {s.x.mean * __fdividef(s.x.count, n), s.g};
        total(means);
        const float mean = means[0], apart = s.x.count > 0.0f ? s.x.mean - mean : 0.0f;
        float around[] = {s.x.squares_around(apart), fmaf(apart, s.g, s.dot)};
        total(around);
        return {{mean, around[0], (float)n}, means[1], around[1]};
    }
    template <typename Total>
    __device__ __forceinline__ Row finish(const State& s, int n, Total& total) const {
        const State all = together(s, n, total);
        const float r = rsqrtf(__fdividef(all.x.squares, n) + eps);
        return {all.x.mean, r, __fdividef(all.g, n), r * __fdividef(all.dot, n)};
    }
    __device__ __forceinline__ void apply(const float* x, float w, const Row& row, float& grad, float* sums) const {
        const float z = (x[1] - row.mean) * row.r;
        grad = row.r * (x[0] * w - row.g - z * row.dot);
        sums[0] = fmaf(x[0], z, sums[0]);
        sums[1] += x[0];
    }
};

ROW_GRADIENTS(LayerNormBackward, 2, 2, 1)
