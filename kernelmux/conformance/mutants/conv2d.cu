// conv2d in blocks of 64 places of one channel, which share the weights of 16 terms at a time; each entry has one
// defect.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT float
#endif
using T = ELEMENT;

enum Defect { NONE, BEYOND_THE_BORDER, NO_DILATION, PADDED_WITH_ONES, BIAS_TWICE, NO_BARRIER, LAST_BLOCK_DROPPED };

struct Sizes {
    int N, C, H, W, O, R, S, P, Q, stride[2], padding[2], dilation[2], biased;
};

// In PTX, because CuPy compiles plain sums and products with -ftz=true, which flushes subnormal numbers.
__device__ float fma_gradual(float a, float b, float c) {
    float sum;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
    return sum;
}

template <int Defect>
__device__ void conv2d(const T* x, const T* weight, const T* bias, T* y, const Sizes& z) {
    constexpr int TERMS = 16;
    __shared__ T shared[TERMS];
    const long long places = (long long)z.N * z.P * z.Q, place = blockIdx.x * 64ll + threadIdx.x;
    const int o = blockIdx.y, K = z.C * z.R * z.S;
    const int n = place / (z.P * z.Q), p = place / z.Q % z.P, q = place % z.Q;
    float sum = 0;
    for (int k0 = 0; k0 < K; k0 += TERMS) {
        const int terms = min(TERMS, K - k0);
        if (Defect == LAST_BLOCK_DROPPED && k0 && terms < TERMS) break;
        if (threadIdx.x < terms) shared[threadIdx.x] = weight[(long long)o * K + k0 + threadIdx.x];
        if (Defect != NO_BARRIER) __syncthreads();
        for (int i = 0; i < terms && place < places; i++) {
            const int k = k0 + i, c = k / (z.R * z.S), r = k / z.S % z.R, s = k % z.S;
            const int h = p * z.stride[0] - z.padding[0] + r * (Defect == NO_DILATION ? 1 : z.dilation[0]);
            const int w = q * z.stride[1] - z.padding[1] + s * (Defect == NO_DILATION ? 1 : z.dilation[1]);
            // One column more is the first of the row that follows.
            const int columns = Defect == BEYOND_THE_BORDER && h + 1 < z.H ? z.W + 1 : z.W;
            const bool inside = h >= 0 && h < z.H && w >= 0 && w < columns;
            float value = Defect == PADDED_WITH_ONES;
            if (inside) value = float(x[(((long long)n * z.C + c) * z.H + h) * z.W + w]);
            if (inside || Defect == PADDED_WITH_ONES) sum = fma_gradual(value, float(shared[i]), sum);
        }
        __syncthreads();
    }
    if (place >= places) return;
    const int times = !z.biased ? 0 : Defect == BIAS_TWICE ? 2 : 1;
    for (int i = 0; i < times; i++) sum = fma_gradual(float(bias[o]), 1, sum);
    y[(((long long)n * z.O + o) * z.P + p) * z.Q + q] = T(sum);
}

#define ENTRY(NAME, DEFECT)                                                                                  \
    extern "C" __global__ void NAME(const T* x, const T* weight, const T* bias, T* y, const Sizes* sizes) { \
        conv2d<DEFECT>(x, weight, bias, y, *sizes);                                                          \
    }
ENTRY(conv2d_sound, NONE)
ENTRY(conv2d_beyond_the_border, BEYOND_THE_BORDER)
ENTRY(conv2d_no_dilation, NO_DILATION)
ENTRY(conv2d_padded_with_ones, PADDED_WITH_ONES)
ENTRY(conv2d_bias_twice, BIAS_TWICE)
ENTRY(conv2d_no_barrier, NO_BARRIER)
ENTRY(conv2d_last_block_dropped, LAST_BLOCK_DROPPED)
