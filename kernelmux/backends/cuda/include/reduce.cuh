// Reductions over rows and over columns: an operator is a functor and one line.
//
//     struct Largest {
//         static __device__ __forceinline__ float identity() { return -infinity(); }
//         __device__ __forceinline__ float operator()(float a, float b) const { return max_or_nan(a, b); }
//     };
//     REDUCTION(reduce_max, Values<Largest>)
//
// Values carries a float; Indexed carries the place of one too, for a functor that says whether the second float is
// better. Every order is fixed by the launch, so results repeat bit for bit. Both entries write OUTPUT:
//   <name>_rows     x: [rows, n] -> y: [rows, splits]; GROUP threads reduce a chunk of a row
//   <name>_columns  x: [outer, n, inner] -> y: [splits, outer, inner]; a thread owns WIDTH columns, walks down a chunk
// With several splits OUTPUT is State, of floats or of places, and a second launch, LAST, of ELEMENT State reduces those.
#pragma once

#include "common.cuh"

// A float and where it stands; the padding has a value, since it is copied with the rest.
struct Place {
    i64 index;
    float value;
    int unused;
};

#ifndef ELEMENT
#define ELEMENT float
#endif
#ifndef OUTPUT
#define OUTPUT float
#endif
#ifndef LAST  // whether OUTPUT is the result, not a state
#define LAST 1
#endif
#ifndef WIDTH
#define WIDTH 4
#endif
#ifndef GROUP
#define GROUP 256
#endif
#ifndef ROWS  // rows: side by side in a block, if a warp or less reduces one
#define ROWS 1
#endif
#ifndef TILE_INNER  // columns: threads side by side; GROUP / TILE_INNER of them share a column
#define TILE_INNER 32
#endif
#ifndef MIN_BLOCKS  // blocks per multiprocessor that the registers must allow
#define MIN_BLOCKS 1
#endif
#ifndef UNROLL  // accesses of a thread in flight
#define UNROLL 4
#endif
#ifndef FOLLOWS  // columns: the kernel ahead, which makes x, may still run
#define FOLLOWS 0
#endif
static_assert(GROUP <= 32 || ROWS == 1, "a row of several warps has the block to itself");

using T = ELEMENT;
using Out = OUTPUT;
using Elements = Vec<T, WIDTH>;
using u32 = unsigned int;

// ---- what is carried

// In a thread and between threads a float. F: its identity, and two floats that become one.
template <typename F>
struct Values {
    using Lane = float;
    using State = float;
    static __device__ __forceinline__ void clear(float& lane) { lane = F::identity(); }
    static __device__ __forceinline__ void add(float& lane, float x, int) { lane = F()(lane, x); }
    static __device__ __forceinline__ float combine(float a, float b) { return F()(a, b); }
    static __device__ __forceinline__ float settled(float lane, i64) { return lane; }
    static __device__ __forceinline__ Out finish(float x) { return from_float<Out>(x); }
};

// In a thread a float and its place from the beginning of the chunk. F: an identity, and whether b is better than a.
// Nothing has index 0: if no element is better than the identity, the first one is as good as any.
template <typename F>
struct Indexed {
    struct Lane {
        float value;
        int index;
    };
    using State = Place;
    static __device__ __forceinline__ void clear(Lane& lane) { lane = {F::identity(), 0}; }
    static __device__ __forceinline__ void clear(Place& lane) { lane = {0, F::identity(), 0}; }
    // x comes after all that the lane has seen.
    static __device__ __forceinline__ void add(Lane& lane, float x, int index) {
        if (F()(lane.value, x)) lane = {x, index};
    }
    static __device__ __forceinline__ void add(Place& lane, const Place& x, int) { lane = combine(lane, x); }
    template <typename Pair>
    static __device__ __forceinline__ Pair combine(const Pair& a, const Pair& b) {
        const bool second = F()(a.value, b.value) || (!F()(b.value, a.value) && b.index < a.index);
        return second ? b : a;
    }
    static __device__ __forceinline__ Place settled(const Lane& lane, i64 first) {
        return {first + lane.index, lane.value, 0};
    }
    static __device__ __forceinline__ Place settled(const Place& lane, i64) { return lane; }
    static __device__ __forceinline__ Out finish(const Place& x) { return x.index; }
};

__device__ __forceinline__ Place shuffle_xor(const Place& x, int step) {
    return {shuffle_xor(x.index, step), shuffle_xor(x.value, step), 0};
}
__device__ __forceinline__ const Place& to_float(const Place& x) { return x; }

template <typename Op, typename Element> struct Laned { using Lane = typename Op::Lane; };
template <typename Op> struct Laned<Op, Place> { using Lane = Place; };
template <typename Op> using Lanes = typename Laned<Op, T>::Lane[WIDTH];

template <typename Op>
struct Combine {
    template <typename State>
    __device__ __forceinline__ State operator()(const State& a, const State& b) const { return Op::combine(a, b); }
};

template <typename Op>
__device__ __forceinline__ Out written(const typename Op::State& state) {
    if constexpr (LAST) return Op::finish(state);
    else return state;
}

// Every lane with its own element of a vector, unless that is not `wanted`.
template <typename Op>
__device__ __forceinline__ void accumulate(Lanes<Op>& lanes, const Elements& x, int index, bool wanted = true) {
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        auto lane = lanes[j];
        Op::add(lane, to_float(x.v[j]), index);
        lanes[j] = wanted ? lane : lanes[j];
    }
}

// ---- rows

template <typename Op>
__device__ __forceinline__ void reduce_rows(const T* x, Out* y, i64 rows, i64 n, i64 chunk, u32 splits) {
    __shared__ typename Op::State scratch[32];
    const i64 row = blockIdx.x / splits * (i64)ROWS + threadIdx.y, split = blockIdx.x % splits;
    const i64 begin = split * chunk, end = min(n, begin + chunk);
    const T* const p = x + row * n + begin;
    const int count = row < rows ? (int)(end - begin) : 0;
    Lanes<Op> lanes;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) Op::clear(lanes[j]);
    // Without conditions, which would hold the last vectors back until those before them have arrived: beyond the end of the
    // row its last vector once more, of which nothing is kept.
    constexpr int STEP = GROUP * WIDTH;
    const int last = count / WIDTH * WIDTH - WIDTH;
    for (int start = threadIdx.x * WIDTH; start <= last; start += UNROLL * STEP) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) held[u] = load_streaming<WIDTH>(p + min(start + u * STEP, last));
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) accumulate<Op>(lanes, held[u], start + u * STEP, start + u * STEP <= last);
    }
    if (threadIdx.x < count % WIDTH) {  // what is left of the last vector
        const int i = count - count % WIDTH + threadIdx.x;
        Op::add(lanes[0], to_float(p[i]), i);
    }
    typename Op::State states[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) states[j] = Op::settled(lanes[j], begin + j);
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2)
        for (int j = 0; j < step; ++j) states[j] = Op::combine(states[j], states[j + step]);
    const auto total = group_reduce<GROUP>(states[0], scratch, Combine<Op>());
    if (threadIdx.x == 0 && row < rows) y[row * splits + split] = written<Op>(total);
}

// ---- columns

constexpr int TILE_N = GROUP / TILE_INNER, COLUMNS = TILE_INNER * WIDTH;
template <typename Op> using Partial = typename Laned<Op, T>::Lane[TILE_N][COLUMNS];

// This block's columns over `count` rows from p: one partial state per row of threads.
template <typename Op>
__device__ __forceinline__ void reduce_down(Partial<Op>& partial, const T* p, int count, i64 inner, bool inside) {
    Lanes<Op> lanes;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) Op::clear(lanes[j]);
    for (int start = threadIdx.y; start < count && inside; start += UNROLL * TILE_N) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * TILE_N < count) held[u] = load_streaming<WIDTH>(p + (start + u * TILE_N) * inner);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * TILE_N < count) accumulate<Op>(lanes, held[u], start + u * TILE_N);
    }
    constexpr int Most = 16 / sizeof(lanes[0]), Part = WIDTH < Most ? WIDTH : Most;  // states per store
#pragma unroll
    for (int j = 0; j < WIDTH; j += Part) {  // neighbours in one store: no bank conflicts
        Vec<typename Laned<Op, T>::Lane, Part> part;
#pragma unroll
        for (int k = 0; k < Part; ++k) part.v[k] = lanes[j + k];
        store(&partial[threadIdx.y][threadIdx.x * WIDTH + j], part);
    }
    __syncthreads();
}

// After reduce_down: the state of column i of the block, in runs of 16 so that no chain of additions gets long.
template <typename Op>
__device__ __forceinline__ auto down_column(const Partial<Op>& partial, int i) {
    constexpr int RUN = TILE_N < 16 ? TILE_N : 16;
    auto total = partial[0][i];
    Op::clear(total);
#pragma unroll
    for (int first = 0; first < TILE_N; first += RUN) {
        auto run = partial[first][i];
#pragma unroll
        for (int k = 1; k < RUN; ++k) run = Op::combine(run, partial[first + k][i]);
        total = Op::combine(total, run);
    }
    return total;
}

template <typename Op>
__device__ __forceinline__ void reduce_columns(const T* x, Out* y, i64 n, i64 inner, i64 chunk, u32 outer, u32 tiles) {
    __shared__ alignas(16) Partial<Op> partial;
    const i64 tile = (i64)(blockIdx.x % tiles) * COLUMNS, c = tile + threadIdx.x * WIDTH, o = blockIdx.x / tiles % outer;
    const i64 split = blockIdx.x / tiles / outer, begin = split * chunk;
    const int count = (int)(min(n, begin + chunk) - begin);
#if FOLLOWS && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    reduce_down<Op>(partial, x + (o * n + begin) * inner + c, count, inner, c < inner);
    Out* const out = y + (split * outer + o) * inner + tile;
    for (int i = threadIdx.y * TILE_INNER + threadIdx.x; i < COLUMNS && tile + i < inner; i += GROUP)
        out[i] = written<Op>(Op::settled(down_column<Op>(partial, i), begin));
}

#define REDUCTION(name, Op)                                                                                           \
    extern "C" __global__ void __launch_bounds__(GROUP * ROWS, MIN_BLOCKS) name##_rows(                                \
        const T* __restrict__ x, Out* __restrict__ y, i64 rows, i64 n, i64 chunk, u32 splits) {                        \
        reduce_rows<Op>(x, y, rows, n, chunk, splits);                                                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(GROUP, MIN_BLOCKS) name##_columns(                                    \
        const T* __restrict__ x, Out* __restrict__ y, i64 n, i64 inner, i64 chunk, u32 outer, u32 tiles) {             \
        reduce_columns<Op>(x, y, n, inner, chunk, outer, tiles);                                                       \
    }
