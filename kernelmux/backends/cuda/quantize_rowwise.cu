// quantize_rowwise: scale = max|x| / largest, q = x / scale in an 8-bit format. x, q: [rows, n], scale: [rows].
//
//   -DFORMAT=Int8 | E4m3 | E5m2
//   -DWALK=resident    the row stays in the registers of a group, of a block or of CLUSTER blocks: one read
//   -DWALK=looped      a block per row reads it twice, the second time from L2 if it is not too long
//
// The quotients are those of an IEEE division. Within a row the reciprocal is the same, so a division is a product and a step
// or two of Markstein's correction ("Computation of elementary functions on the IBM RISC System/6000 processor", 1990). Two
// are exact; of the quotients of 16-bit numbers one step rounds all to the right number of every format (tried for all
// pairs of mantissas). The steps need what does not underflow: rows of tiny numbers are lifted by a power of two.
#include <cuda_fp8.h>

#include "row_parameters.cuh"

using Codes = Vec<unsigned char, WIDTH>;

// Of fp16 no scale is so small that a row must be lifted.
__device__ __forceinline__ constexpr bool short_range(__half) { return true; }
template <typename Other>
__device__ __forceinline__ constexpr bool short_range(Other) { return false; }

struct Int8 {
    static constexpr float largest = 127.0f;
    static constexpr bool signed_zero = false;
    // Four numbers at once; NaN becomes 0.
    static __device__ __forceinline__ unsigned codes(const float (&x)[4]) {
        unsigned upper, all;
        asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(upper) : "r"(__float2int_rn(x[3])), "r"(__float2int_rn(x[2])));
        asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
            : "=r"(all)
            : "r"(__float2int_rn(x[1])), "r"(__float2int_rn(x[0])), "r"(upper));
        return all;
    }
};

template <__nv_fp8_interpretation_t Kind>
struct Float8 {
    static constexpr float largest = Kind == __NV_E4M3 ? 448.0f : 57344.0f;
    static constexpr bool signed_zero = true;
    static __device__ __forceinline__ unsigned codes(const float (&x)[4]) {
        const unsigned low = __nv_cvt_float2_to_fp8x2({x[0], x[1]}, __NV_SATFINITE, Kind);
        const unsigned high = __nv_cvt_float2_to_fp8x2({x[2], x[3]}, __NV_SATFINITE, Kind);
        return low | high << 16;
    }
};
using E4m3 = Float8<__NV_E4M3>;
using E5m2 = Float8<__NV_E5M2>;

struct Larger {
    __device__ __forceinline__ unsigned operator()(unsigned a, unsigned b) const { return max(a, b); }
};

// The largest magnitude so far, as the bits of a T: they are ordered as the numbers are, and NaN is above infinity.
struct Top {
    unsigned bits = 0;
    template <typename Op, int Width>
    __device__ __forceinline__ void join(const Op&, Lanes<Width>) {
        bits = warp_reduce<Width>(bits, Larger());
    }
    __device__ __forceinline__ void add(T x) {
        bits = max(bits, ::bits<typename Access<sizeof(T)>::type>(x) & (sizeof(T) == 4 ? 0x7fffffffu : 0x7fffu));
    }
    __device__ __forceinline__ void add(const Elements& x) {
        if constexpr (sizeof(T) == 4 || sizeof(x) == 2) {
            constexpr unsigned Magnitude = sizeof(T) == 4 ? 0x7fffffffu : 0x7fffu;
            using Bits = typename Access<sizeof(T)>::type;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) bits = max(bits, ::bits<Bits>(x.v[i]) & Magnitude);
        } else {
            unsigned pairs[(sizeof(x) + 3) / 4], top = 0;
            memcpy(pairs, &x, sizeof(x));
#pragma unroll
            for (unsigned pair : pairs) top = __vmaxu2(top, pair & 0x7fff7fffu);
            bits = max(bits, max(top & 0xffffu, top >> 16));
        }
    }
    __device__ __forceinline__ float value() const {
        if constexpr (sizeof(T) == 4) return __uint_as_float(bits);
        else return to_float(::bits<T>((unsigned short)bits));
    }
};

__device__ __forceinline__ float divide(float a, float b) {
    float quotient;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
    return quotient;
}
__device__ __forceinline__ float multiply(float a, float b) {
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
}

// The scale of a row, and what its quotients are made with: lift * x / divisor, by inverse = 1 / divisor.
struct Scale {
    float value, lift, divisor, inverse;

    __device__ __forceinline__ explicit Scale(Top top) : value(divide(top.value(), FORMAT::largest)) {
        const unsigned size = __float_as_uint(value);  // -ftz=true compares subnormal numbers as zeros
        lift = value < 0x1p-40f ? 0x1p100f : 1.0f;
        divisor = multiply(value, lift);
        inverse = size ? divide(1.0f, divisor) : 0.0f;
        if (size == 0 || size >= 0x7f800000u) divisor = 0.0f;  // no correction: x * inverse is 0, or NaN
    }

    __device__ __forceinline__ float quotient(float x) const {
        const float lifted = short_range(T()) ? x : multiply(x, lift);
        float q = lifted * inverse;
#pragma unroll
        for (int step = 0; step < (sizeof(T) == 2 ? 1 : 2); ++step) q = fmaf(fmaf(-q, divisor, lifted), inverse, q);
        return FORMAT::signed_zero ? copysignf(q, x) : q;
    }

    __device__ __forceinline__ Codes codes(const Elements& x) const {
        float numbers[WIDTH];
        to_floats(numbers, x);
        Codes made;
#pragma unroll
        for (int i = 0; i < WIDTH; i += 4) {
            float four[4] = {};
#pragma unroll
            for (int j = 0; j < (WIDTH < 4 ? WIDTH : 4); ++j) four[j] = quotient(numbers[i + j]);
            const unsigned word = FORMAT::codes(four);
            memcpy(&made.v[i], &word, WIDTH < 4 ? WIDTH : 4);
        }
        return made;
    }
    __device__ __forceinline__ unsigned char code(T x) const {
        const float four[4] = {quotient(to_float(x))};
        return (unsigned char)FORMAT::codes(four);
    }
};

__device__ __forceinline__ void resident(
    const T* __restrict__ x, unsigned char* __restrict__ q, float* __restrict__ scale, i64 rows, int n) {
    constexpr int PART = GROUP * VECTORS * WIDTH;  // columns of a block
    __shared__ JoinRoom<Top> room;
    join_cluster(room);
    const i64 row = blockIdx.x / CLUSTER * (i64)ROWS + threadIdx.y;
    x += min(row, rows - 1) * n;  // beyond the last row: once more, but not written
    q += min(row, rows - 1) * n;
    const Peel peel = peeled(x, n);
    const int first = peel.head + block_in_cluster() * PART, count = min(peel.tail - first, PART);
    BesideRow<1> beside(peel, block_in_cluster() == 0);
    Elements held[VECTORS];
    // Without conditions, which would hold the last vectors back: beyond the end of the row its last vector once more.
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) held[v] = load_constant<WIDTH>(x + first + within(v, count));
    beside.ask({x}, 0);
    Top top;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) top.add(held[v]);
    beside.each([&](int b) { top.add(beside.asked[b][0]); });
    await_cluster();
    const Scale found(joined(0, top, room));
    if (ROWS > 1 && row >= rows) return;
    for_each_vector(count, [&](int i, int v) { store(q + first + i, found.codes(held[v])); });
    beside.each([&](int b) { q[beside.at[b]] = found.code(beside.asked[b][0]); });
    if (block_in_cluster() == 0 && threadIdx.x == 0) scale[row] = found.value;
}

__device__ __forceinline__ void looped(
    const T* __restrict__ x, unsigned char* __restrict__ q, float* __restrict__ scale, i64, int n) {
    constexpr int STEP = GROUP * WIDTH;
    __shared__ JoinRoom<Top> room;
    x += blockIdx.x * (i64)n;
    q += blockIdx.x * (i64)n;
    const Peel peel = peeled(x, n);
    BesideRow<1> beside(peel);
    beside.ask({x}, 0);
    const int first = peel.head + threadIdx.x * WIDTH;
    Top top;
    for (int i = first; i < peel.tail; i += UNROLL * STEP) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u * STEP < peel.tail) held[u] = load<WIDTH>(x + i + u * STEP);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u * STEP < peel.tail) top.add(held[u]);
    }
    beside.each([&](int b) { top.add(beside.asked[b][0]); });
    const Scale found(joined(0, top, room));
#pragma unroll UNROLL
    for (int i = first; i < peel.tail; i += STEP)
        store_streaming(q + i, found.codes(load_streaming<WIDTH>(x + i)));
    beside.each([&](int b) { q[beside.at[b]] = found.code(beside.asked[b][0]); });
    if (threadIdx.x == 0) scale[blockIdx.x] = found.value;
}

extern "C" __global__ void CLUSTER_SHAPE __launch_bounds__(GROUP * ROWS, MIN_BLOCKS)
    ENTRY(const T* __restrict__ x, unsigned char* __restrict__ q, float* __restrict__ scale, i64 rows, int n) {
    WALK(x, q, scale, rows, n);
}
