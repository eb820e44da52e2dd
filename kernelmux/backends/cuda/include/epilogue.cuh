// The end of a product: y = activation(sum + bias[n]) from fp32 sums, each output rounded once.
//
//   -DBIAS=1                                 a bias along the columns
//   -DACTIVATION=GeluErf (or Silu, Relu)     an activation; then z = sum + bias[n] is stored as well, for its backward
//
// Both are decided when the kernel is compiled. Without either it has no parameters for them and no instructions.
#pragma once
#include "activations.cuh"

#ifndef BIAS
#define BIAS 0
#endif
#ifdef ACTIVATION
#define SAVES 1
#else
#define SAVES 0
#define ACTIVATION Identity
#endif

#if BIAS || SAVES  // parameters of a kernel, of elements T, and what it hands on; what is not needed is null
#define EPILOGUE_PARAMETERS(T) , const T* __restrict__ bias, T* __restrict__ z
#define EPILOGUE(T) Epilogue<T>{bias, z}
#else
#define EPILOGUE_PARAMETERS(T)
#define EPILOGUE(T) Epilogue<T>{}
#endif

struct Identity {
    static __device__ __forceinline__ float value(float x) { return x; }
};
struct Relu {
    static __device__ __forceinline__ float value(float x) { return x < 0.0f ? 0.0f : x; }  // fmaxf would drop a NaN
};

// bias [N], z [M, N].
template <typename T>
struct Epilogue {
    const T* bias;
    T* z;

    // The bias of column n, which is below N.
    __device__ __forceinline__ float bias_of(int n) const {
        if constexpr (BIAS) return to_float(__ldg(bias + n));
        return 0.0f;
    }

    // The argument of the activation.
    static __device__ __forceinline__ float biased(float sum, float bias) {
        if constexpr (BIAS) return add_gradual(sum, bias);
        return sum;
    }

    // Stores y, and z, of Width neighbours in a row: at `at` in c, from column n on.
    template <int Width>
    __device__ __forceinline__ void store(T* c, i64 at, int n, const float (&sum)[Width]) const {
        float x[Width];
#pragma unroll
        for (int i = 0; i < Width; i++) x[i] = biased(sum[i], bias_of(n + i));
        if constexpr (SAVES) ::store(z + at, from_floats<T>(x));
#pragma unroll
        for (int i = 0; i < Width; i++) x[i] = ACTIVATION::value(x[i]);
        ::store(c + at, from_floats<T>(x));
    }
};
