// Shared by all kernels: number types, wide memory accesses, reductions over a warp and over a block.
// Template parameters are CamelCase here: names in capitals belong to the -D options of the kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using i64 = long long;

__host__ __device__ constexpr int cdiv(int a, int b) { return (a + b - 1) / b; }

// ---- bits and numbers

template <typename To, typename From>
__device__ __forceinline__ To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits() keeps the size");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __half from_float<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// Two numbers in one 32-bit word, low half first: one conversion instruction in place of two and a merge.
template <typename T> __device__ __forceinline__ unsigned pair_from_floats(float low, float high);
template <> __device__ __forceinline__ unsigned pair_from_floats<__half>(float low, float high) {
    return bits<unsigned>(__floats2half2_rn(low, high));
}
template <> __device__ __forceinline__ unsigned pair_from_floats<__nv_bfloat16>(float low, float high) {
    return bits<unsigned>(__floats2bfloat162_rn(low, high));
}

// 2^x and 1/x of the special function unit: relative error about 2^-22, results below 2^-126 become 0.
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Sums and products with gradual underflow, for the operators that keep subnormal numbers. CuPy ends the options of every
// compilation with -ftz=true, which turns each plain + and * of floats into one that flushes them to zero; PTX without
// .ftz is what it says. The others stay plain: their specs let results below 2^-126 become 0.
__device__ __forceinline__ float add_gradual(float a, float b) {
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}
__device__ __forceinline__ float fma_gradual(float a, float b, float c) {
    float sum;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
    return sum;
}

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// ---- vectors: Width neighbouring elements moved by one access

template <int Bytes> struct Access;
template <> struct Access<1> { using type = unsigned char; };
template <> struct Access<2> { using type = unsigned short; };
template <> struct Access<4> { using type = unsigned int; };
template <> struct Access<8> { using type = uint2; };
template <> struct Access<16> { using type = uint4; };

template <typename T, int Width>
struct alignas(sizeof(T) * Width) Vec {
    using Raw = typename Access<sizeof(T) * Width>::type;
    T v[Width];
};

template <int Width, typename T>
__device__ __forceinline__ Vec<T, Width> load(const T* p) {
    return bits<Vec<T, Width>>(*reinterpret_cast<const typename Vec<T, Width>::Raw*>(p));
}

// Of memory that nothing writes while the kernel runs: such loads may be moved across stores.
template <int Width, typename T>
__device__ __forceinline__ Vec<T, Width> load_constant(const T* p) {
    return bits<Vec<T, Width>>(__ldg(reinterpret_cast<const typename Vec<T, Width>::Raw*>(p)));
}

// Streaming accesses are the first to leave the caches. That helps where the same kernel reads other data twice, and
// costs where it does not: then L2 may as well keep what was written last, for the next kernel to read (add of
// 2 x 128 MiB on an H200: 97.4 us, all streaming 102.8 us).
template <int Width, typename T>
__device__ __forceinline__ Vec<T, Width> load_streaming(const T* p) {
    return bits<Vec<T, Width>>(__ldcs(reinterpret_cast<const typename Vec<T, Width>::Raw*>(p)));
}

template <typename T, int Width>
__device__ __forceinline__ void store(T* p, const Vec<T, Width>& x) {
    using Raw = typename Vec<T, Width>::Raw;
    *reinterpret_cast<Raw*>(p) = bits<Raw>(x);
}

template <typename T, int Width>
__device__ __forceinline__ void store_streaming(T* p, const Vec<T, Width>& x) {
    using Raw = typename Vec<T, Width>::Raw;
    __stcs(reinterpret_cast<Raw*>(p), bits<Raw>(x));
}

template <typename T, int Width>
__device__ __forceinline__ Vec<T, Width> from_floats(const float (&x)[Width]) {
    Vec<T, Width> y;
    if constexpr (sizeof(T) == 2 && Width % 2 == 0) {
#pragma unroll
        for (int i = 0; i < Width; i += 2) {
            const unsigned pair = pair_from_floats<T>(x[i], x[i + 1]);
            memcpy(&y.v[i], &pair, sizeof(pair));
        }
    } else {
#pragma unroll
        for (int i = 0; i < Width; ++i) y.v[i] = from_float<T>(x[i]);
    }
    return y;
}

// The numbers of a vector. Of a pair of bf16 each is one instruction; taken out one by one the upper ones would be two.
template <typename T, int Width>
__device__ __forceinline__ void to_floats(float (&y)[Width], const Vec<T, Width>& x) {
#pragma unroll
    for (int i = 0; i < Width; ++i) y[i] = to_float(x.v[i]);
}
template <int Width>
__device__ __forceinline__ void to_floats(float (&y)[Width], const Vec<__nv_bfloat16, Width>& x) {
    if constexpr (Width == 1) {
        y[0] = to_float(x.v[0]);
    } else {
        unsigned words[Width / 2];
        memcpy(words, &x, sizeof(x));
#pragma unroll
        for (int i = 0; i < Width / 2; ++i) {
            y[2 * i] = __uint_as_float(words[i] << 16);
            y[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    }
}

// Keeps the packed form: the compiler would rather hold on to the floats it once made of x, in twice the registers.
template <typename T, int Width>
__device__ __forceinline__ void stay_packed(Vec<T, Width>& x) {
    if constexpr (sizeof(x) >= 4) {
        unsigned words[sizeof(x) / 4];
        memcpy(words, &x, sizeof(x));
#pragma unroll
        for (unsigned& word : words) asm volatile("" : "+r"(word));
        memcpy(&x, words, sizeof(x));
    }
}

// ---- reductions; the order of the operations is fixed, so results repeat bit for bit

struct Sum {
    static __device__ __forceinline__ float identity() { return 0.0f; }
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

struct GradualSum {
    static __device__ __forceinline__ float identity() { return 0.0f; }
    __device__ __forceinline__ float operator()(float a, float b) const { return add_gradual(a, b); }
};

// fmaxf drops a NaN; kernels that use it let the NaN through by another way.
struct Max {
    static __device__ __forceinline__ float identity() { return -infinity(); }
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// The value of the lane whose number differs by `step`; headers that carry more than numbers add their own.
template <typename Value>
__device__ __forceinline__ Value shuffle_xor(Value x, int step) {
    return __shfl_xor_sync(0xffffffffu, x, step);
}

// Over groups of Width lanes (a power of two up to 32); every lane gets the result.
template <int Width = 32, typename Value, typename Op>
__device__ __forceinline__ Value warp_reduce(Value x, Op op) {
#pragma unroll
    for (int step = Width / 2; step > 0; step /= 2) x = op(x, shuffle_xor(x, step));
    return x;
}

// Over a block of Threads; every thread gets the result. `scratch` holds one value per warp and may be written again
// after the block's next barrier, so two calls in a row need two scratches.
template <int Threads, typename Value, typename Op>
__device__ __forceinline__ Value block_reduce(Value x, Value* scratch, Op op) {
    constexpr int Warps = Threads / 32;
    x = warp_reduce(x, op);
    if constexpr (Warps > 1) {
        const int lane = threadIdx.x % 32;
        if (lane == 0) scratch[threadIdx.x / 32] = x;
        __syncthreads();
        x = warp_reduce<Warps>(scratch[lane % Warps], op);
    }
    return x;
}

// Over a group of Group threads that share threadIdx.y: within warps up to 32, else the whole block.
template <int Group, typename Value, typename Op>
__device__ __forceinline__ Value group_reduce(Value x, Value* scratch, Op op) {
    if constexpr (Group <= 32) return warp_reduce<Group>(x, op);
    else return block_reduce<Group>(x, scratch, op);
}

// Two sums for the price of one barrier; `scratch` holds one float2 per warp.
template <int Group>
__device__ __forceinline__ float2 group_sum(float2 x, float2* scratch) {
    constexpr int Warps = Group / 32;
    x = {warp_reduce<Group < 32 ? Group : 32>(x.x, Sum()), warp_reduce<Group < 32 ? Group : 32>(x.y, Sum())};
    if constexpr (Warps > 1) {
        const int lane = threadIdx.x % 32;
        if (lane == 0) scratch[threadIdx.x / 32] = x;
        __syncthreads();
        x = scratch[lane % Warps];
        x = {warp_reduce<Warps>(x.x, Sum()), warp_reduce<Warps>(x.y, Sum())};
    }
    return x;
}
