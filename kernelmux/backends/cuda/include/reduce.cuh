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
//   <name>_columns  x: [outer, n, inner] -> y: [splits, outer, inner]; a thread owns WIDTH columns, walks down a chunk.
//                   Several rows may be one, whose columns are theirs side by side: then all rows begin at whole accesses, and
//                   the last has only `rest` columns. (Of values; outer = 1; a second launch takes the states of a column.)
// With several splits OUTPUT is State, of floats or of places, and a second launch, LAST, of ELEMENT State reduces those; it
// may start while the first still runs.
#pragma once

#include "common.cuh"
#include "dependent_launch.cuh"

// A float and where it stands; the padding has a value, since it is copied with the rest.
struct Place {
    i64 index;
    float value;
    int unused;
};

// The same within a block, counted from the beginning of its chunk.
struct Near {
    float value;
    int index;
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
#ifndef PEELED  // rows: they start anywhere, and their vectors at the first aligned address of each
#define PEELED 0
#endif
#ifndef TILE_INNER  // columns: threads side by side; GROUP / TILE_INNER of them share a column
#define TILE_INNER 32
#endif
#ifndef FOLDED  // columns: whether a row is several of x
#define FOLDED 0
#endif
#ifndef MIN_BLOCKS  // blocks per multiprocessor that the registers must allow
#define MIN_BLOCKS 1
#endif
#ifndef UNROLL  // accesses of a thread in flight
#define UNROLL 4
#endif
static_assert(GROUP <= 32 || ROWS == 1, "a row of several warps has the block to itself");
static_assert(!PEELED || GROUP >= WIDTH, "each element before the first vector has a thread");

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

// A float and its place. F: an identity, whether b is better than a, and the better of two (`of`), the first of equals.
// Nothing has index 0: if no element is better than the identity, the first one is as good as any.
template <typename F>
struct Indexed {
    using Lane = Near;
    using State = Place;
    static __device__ __forceinline__ void clear(Near& lane) { lane = {F::identity(), 0}; }
    static __device__ __forceinline__ void clear(Place& lane) { lane = {0, F::identity(), 0}; }
    // x comes after all that the lane has seen.
    static __device__ __forceinline__ void add(Near& lane, float x, int index) {
        if (F()(lane.value, x)) lane = {x, index};
    }
    static __device__ __forceinline__ void add(Place& lane, const Place& x, int) { lane = combine(lane, x); }
    template <typename Pair>
    static __device__ __forceinline__ Pair combine(const Pair& a, const Pair& b) {
        const bool second = F()(a.value, b.value) || (!F()(b.value, a.value) && b.index < a.index);
        return second ? b : a;
    }
    static __device__ __forceinline__ Place settled(const Near& lane, i64 first) {
        return {first + lane.index, lane.value, 0};
    }
    static __device__ __forceinline__ Place settled(const Place& lane, i64) { return lane; }
    static __device__ __forceinline__ Out finish(const Place& x) { return x.index; }
};

__device__ __forceinline__ Place shuffle_xor(const Place& x, int step) {
    return {shuffle_xor(x.index, step), shuffle_xor(x.value, step), 0};
}
__device__ __forceinline__ Near shuffle_xor(const Near& x, int step) {
    return {shuffle_xor(x.value, step), shuffle_xor(x.index, step)};
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

// Before x is read: after the end of a kernel ahead that may still run. What reduces the states may start meanwhile.
__device__ __forceinline__ void start_after_previous() {
    if constexpr (!LAST) let_next_start();
    if constexpr (FOLLOWS) wait_for_previous();
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

// A thread's part of a row: a lane for each element of a vector.
template <typename Op>
struct LanesOfRow {
    Lanes<Op> lanes;
    __device__ __forceinline__ LanesOfRow() {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) Op::clear(lanes[j]);
    }
    __device__ __forceinline__ void add(const Elements& x, int index, bool wanted) {
        accumulate<Op>(lanes, x, index, wanted);
    }
    __device__ __forceinline__ void add(const T& x, int index) { Op::add(lanes[0], to_float(x), index); }
    __device__ __forceinline__ void add_before(const T& x, int index) { add(x, index); }
    __device__ __forceinline__ typename Op::State total() {
#pragma unroll
        for (int step = WIDTH / 2; step > 0; step /= 2)
            for (int j = 0; j < step; ++j) lanes[j] = Op::combine(lanes[j], lanes[j + step]);
        return lanes[0];
    }
};
template <typename Op, typename Element> struct PartOfRow : LanesOfRow<Op> {};
template <typename F> struct PartOfRow<Indexed<F>, Place> : LanesOfRow<Indexed<F>> {};

// Where a place is asked for, the first of the best vectors, known by its best element; which one that is, is asked at the end.
template <typename F, typename Element>
struct PartOfRow<Indexed<F>, Element> {
    Near best = {F::identity(), 0};
    Elements held = {};
    __device__ __forceinline__ void add(const Elements& x, int index, bool wanted) {
        float most = to_float(x.v[0]);
#pragma unroll
        for (int j = 1; j < WIDTH; ++j) most = F::of(most, to_float(x.v[j]));
        if (wanted && F()(best.value, most)) {
            best = {most, index};
            held = x;
        }
    }
    __device__ __forceinline__ void hold(const Element& x, int index) {
        best = {to_float(x), index};
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) held.v[j] = x;
    }
    __device__ __forceinline__ void add(const Element& x, int index) {
        if (F()(best.value, to_float(x))) hold(x, index);
    }
    // x comes before all that was seen.
    __device__ __forceinline__ void add_before(const Element& x, int index) {
        if (!F()(to_float(x), best.value)) hold(x, index);
    }
    __device__ __forceinline__ Near total() const {
        int place = WIDTH - 1;
#pragma unroll
        for (int j = WIDTH - 2; j >= 0; --j) place = F()(to_float(held.v[j]), best.value) ? place : j;
        return {best.value, best.index + place};
    }
};

template <typename Op>
__device__ __forceinline__ void reduce_rows(const T* x, Out* y, i64 rows, i64 n, i64 chunk, u32 splits) {
    const i64 row = blockIdx.x / splits * (i64)ROWS + threadIdx.y, split = blockIdx.x % splits;
    const i64 begin = split * chunk, end = min(n, begin + chunk);
    const T* p = x + row * n + begin;
    int count = row < rows ? (int)(end - begin) : 0, before = 0;
    start_after_previous();
    T first = {};
    if constexpr (PEELED) {
        before = min(count, (int)((0 - (size_t)p) % 16 / sizeof(T)));
        if ((int)threadIdx.x < before) first = p[threadIdx.x];
        p += before;
        count -= before;
    }
    PartOfRow<Op, T> part;
    // Without conditions, which would hold the last vectors back until those before them have arrived: beyond the end of the
    // row its last vector once more, of which nothing is kept.
    constexpr int STEP = GROUP * WIDTH;
    const int last = count / WIDTH * WIDTH - WIDTH;
    for (int start = threadIdx.x * WIDTH; start <= last; start += UNROLL * STEP) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) held[u] = load_streaming<WIDTH>(p + min(start + u * STEP, last));
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) part.add(held[u], before + start + u * STEP, start + u * STEP <= last);
    }
    for (int i = count - count % WIDTH + threadIdx.x; i < count; i += GROUP) part.add(p[i], before + i);  // less than a vector
    if (PEELED && (int)threadIdx.x < before) part.add_before(first, threadIdx.x);
    auto total = part.total();
    __shared__ decltype(total) scratch[32];
    total = group_reduce<GROUP>(total, scratch, Combine<Op>());
    if (threadIdx.x == 0 && row < rows) y[row * splits + split] = written<Op>(Op::settled(total, begin));
}

// ---- columns

constexpr int TILE_N = GROUP < TILE_INNER ? 1 : GROUP / TILE_INNER, COLUMNS = TILE_INNER * WIDTH;
template <typename Op> using Partial = typename Laned<Op, T>::Lane[TILE_N][COLUMNS];

// This block's columns over `count` rows from p: one partial state per row of threads. there: of the last row, how many of
// this thread's columns there are.
template <typename Op>
__device__ __forceinline__ void reduce_down(Partial<Op>& partial, const T* p, int count, i64 inner, bool inside, int there) {
    Lanes<Op> lanes;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) Op::clear(lanes[j]);
    const int whole = count - (there < WIDTH);
    for (int start = threadIdx.y; start < whole && inside; start += UNROLL * TILE_N) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * TILE_N < whole) held[u] = load_streaming<WIDTH>(p + (start + u * TILE_N) * inner);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * TILE_N < whole) accumulate<Op>(lanes, held[u], start + u * TILE_N);
    }
    if (there < WIDTH && threadIdx.y == 0 && inside)
#pragma unroll
        for (int j = 0; j < WIDTH; ++j)
            if (j < there) Op::add(lanes[j], to_float(p[whole * inner + j]), whole);
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
__device__ __forceinline__ void reduce_columns(
    const T* x, Out* y, i64 n, i64 inner, i64 chunk, i64 rest, u32 outer, u32 tiles) {
    __shared__ alignas(16) Partial<Op> partial;
    const i64 tile = (i64)(blockIdx.x % tiles) * COLUMNS, c = tile + threadIdx.x * WIDTH, o = blockIdx.x / tiles % outer;
    const i64 split = blockIdx.x / tiles / outer, begin = split * chunk;
    const int count = (int)(min(n, begin + chunk) - begin);
    start_after_previous();
    const int there = FOLDED && begin + count == n ? (int)min((i64)WIDTH, rest - c) : WIDTH;
    reduce_down<Op>(partial, x + (o * n + begin) * inner + c, count, inner, c < inner, there);
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
        const T* __restrict__ x, Out* __restrict__ y, i64 n, i64 inner, i64 chunk, i64 rest, u32 outer, u32 tiles) {   \
        reduce_columns<Op>(x, y, n, inner, chunk, rest, outer, tiles);                                                 \
    }
