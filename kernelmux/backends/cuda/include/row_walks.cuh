// Row operators: an operator is a struct of small functions and one line; the ways to walk over rows are here.
//
//     struct RmsNorm {
//         float eps;                  // the numbers that a call gives, all floats
//         using State = OneSum;       // what is known of a part of a row; see row_join.cuh
//         struct Row { float r; };    // what the results of a row need
//         // Adds values of one thread; each(f) calls f(x) for every column, x[i] of input i, and may be called again.
//         template <typename Each> __device__ void add(State& s, Each each) const {
//             each([&](const float* x) { s.sum = fmaf(x[0], x[0], s.sum); });
//         }
//         __device__ Row finish(State s, int n) const { return {rsqrtf(__fdividef(s.sum, n) + eps)}; }
//         __device__ void apply(const float* x, const float* w, const Row& row, float* y) const { y[0] = x[0] * row.r * w[0]; }
//     };
//     ROW_OPERATOR(RmsNorm, 1, 1, 1, 1)    // inputs [rows, n], weights [n], outputs [rows, n], numbers
//
// For an operator whose last weight may be missing the count is WEIGHTS, that of the call.
//
// The line makes one kernel called ENTRY that takes the rows in the way WALK says:
//   resident  the row stays in the registers of a group, of a block or of CLUSTER blocks: one read, one write
//   looped    a block per row reads it twice, the second time from L2 if it is not too long
//   columns   x: [rows, n, inner], the row runs along the middle: neighbouring threads own neighbouring columns
#pragma once

#include "dependent_launch.cuh"
#include "row_columns.cuh"
#include "row_parameters.cuh"
#include "row_values.cuh"

// ---- resident

#ifndef RETAIN  // of whole vectors: what was read is the last to leave L2
#define RETAIN 0
#endif

#ifndef FEW  // no more blocks than multiprocessors, so that one has all the registers, and its latency is what counts
#define FEW 0
#endif

// Makes the state depend on words that have been asked for (zero is 0): the compiler puts loads that results alone need behind
// the reduction, where they would be a second way to memory.
template <typename State>
__device__ __forceinline__ void depend(State& state, int zero) {
    int word;
    memcpy(&word, &state, sizeof(word));
    word += zero;
    memcpy(&state, &word, sizeof(word));
}

// Columns of a peeled row beside its vectors: this thread takes every GROUP-th, up to BESIDE of them.
constexpr int BESIDE = PEELED ? cdiv(2 * (WIDTH - 1), GROUP) : 0;

template <typename Op, int In, int Weights, int Out>
struct Beside {
    int at[at_least_one(BESIDE)];  // -1 where there is none
    float x[at_least_one(BESIDE)][In];

    __device__ __forceinline__ Beside(const Rows<Op, In, Weights, Out>& all, i64 start, const Peel& peel, bool here = true) {
#pragma unroll
        for (int b = 0; b < BESIDE; ++b) {
            const int k = threadIdx.x + b * GROUP;
            at[b] = here && k < peel.few ? peel.beside(k) : -1;
#pragma unroll
            for (int i = 0; i < In; ++i) x[b][i] = at[b] >= 0 ? to_float(all.x[i][start + at[b]]) : 0.0f;
        }
    }
    template <typename F>
    __device__ __forceinline__ void each(F f) const {
#pragma unroll
        for (int b = 0; b < BESIDE; ++b)
            if (at[b] >= 0) f(x[b]);
    }
    __device__ __forceinline__ void write(const Rows<Op, In, Weights, Out>& all, i64 start, const typename Op::Row& row) const {
#pragma unroll
        for (int b = 0; b < BESIDE; ++b)
            if (at[b] >= 0) all.write_single(row, x[b], start, at[b]);
    }
};

// Of a row that is read once.
__device__ __forceinline__ Elements load_of_row(const T* p) {
#if RETAIN && __CUDA_ARCH__ >= 800
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    uint4 x;
    asm("ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
        : "l"(p), "l"(policy));
    return bits<Elements>(x);
#else
    return load_constant<WIDTH>(p);
#endif
}

template <typename Op, int In, int Weights, int Out>
__device__ __forceinline__ void resident(const Rows<Op, In, Weights, Out>& all, i64 rows, int n, i64 inner) {
    using State = typename Op::State;
    constexpr int PART = GROUP * VECTORS * WIDTH;  // columns of a block
    __shared__ JoinRoom<State> room;
    join_cluster(room);
    const i64 row = blockIdx.x / CLUSTER * (i64)ROWS + threadIdx.y;
    const i64 begin = min(row, rows - 1) * n;  // beyond the last row: once more, but not written
    const Peel peel = PEELED ? Peel::of<WIDTH>(all.x[0] + begin, n) : Peel{0, n, 0};
    const int first = peel.head + block_in_cluster() * PART, part = min(peel.tail - first, PART);
    Elements held[VECTORS][In], weight[VECTORS][at_least_one(Weights)];
    // Without a condition, and with a dependence (inner is 1): else the compiler asks for the last vectors when those before them
    // have arrived. Beyond the end of the row that is its last vector once more.
    int count = part;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
#pragma unroll
        for (int k = 0; k < In; ++k) {
            held[v][k] = load_of_row(all.x[k] + begin + first + within(v, part));
            if (v >= INSIDE) count += first_word(held[v][k]) & (int)(inner - 1);
        }
    }
    const Beside<Op, In, Weights, Out> beside(all, begin, peel, block_in_cluster() == 0);
    // Asked for before the reduction, which hides their latency, as far as 1,024 threads, or those of one block, have
    // registers for both.
    constexpr int REGISTERS = VECTORS * (In + Weights) * at_least_one((int)sizeof(Elements) / 4);
    constexpr int ROOM = 65536 / (GROUP * ROWS) < 255 ? 65536 / (GROUP * ROWS) - 48 : 160;
    constexpr bool EARLY =
        Weights > 0 && (FEW ? REGISTERS <= ROOM
                            : VECTORS * WIDTH <= 32 && sizeof(held) + Weights * VECTORS * sizeof(Elements) <= 128);
    if (EARLY)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) all.load_weights(weight[v], first + within(v, part), n);
    State state;
    all.op.add(state, [&](auto f) {
        for_each_vector(count, [&](int, int v) { all.each_of(held[v], f); });
        beside.each(f);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
#pragma unroll
            for (int k = 0; k < In; ++k) stay_packed(held[v][k]);
    });
    if (FEW) {
        int words = 0;
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
#pragma unroll
            for (int k = 0; k < In; ++k) words |= first_word(held[v][k]);
            if (EARLY)
#pragma unroll
                for (int k = 0; k < Weights; ++k) words |= first_word(weight[v][k]);
        }
        depend(state, words & (int)(inner - 1));
    }
    await_cluster();
    const typename Op::Row found = all.op.finish(joined(all.op, state, room), n);
    if (ROWS > 1 && row >= rows) return;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        if (!EARLY) all.load_weights(weight[v], first + within(v, part), n);
        if (!EARLY && Weights > 0 && v >= INSIDE) count += first_word(weight[v][at_least_one(Weights) - 1]) & (int)(inner - 1);
        if (v < INSIDE || column(v) < count)
            all.template write<false>([&](int) { return found; }, held[v], weight[v], begin + first + column(v));
    }
    beside.write(all, begin, found);
}

// ---- looped

template <typename Op, int In, int Weights, int Out>
__device__ __forceinline__ void looped(const Rows<Op, In, Weights, Out>& all, i64, int n, i64) {
    using State = typename Op::State;
    __shared__ JoinRoom<State> room;
    const i64 start = blockIdx.x * (i64)n;
    const Peel peel = PEELED ? Peel::of<WIDTH>(all.x[0] + start, n) : Peel{0, n, 0};
    const Beside<Op, In, Weights, Out> beside(all, start, peel);
    const int first = peel.head + threadIdx.x * WIDTH;
    State state;
    for (int i = first; i < peel.tail; i += UNROLL * GROUP * WIDTH) {
        Elements held[UNROLL][In];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u * GROUP * WIDTH < peel.tail)
#pragma unroll
                for (int k = 0; k < In; ++k) held[u][k] = load<WIDTH>(all.x[k] + start + i + u * GROUP * WIDTH);
        all.op.add(state, [&](auto f) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (i + u * GROUP * WIDTH < peel.tail) all.each_of(held[u], f);
        });
    }
    if (PEELED) all.op.add(state, [&](auto f) { beside.each(f); });
    const typename Op::Row found = all.op.finish(joined(all.op, state, room), n);
#pragma unroll UNROLL
    for (int i = first; i < peel.tail; i += GROUP * WIDTH) {
        Elements held[In], weight[at_least_one(Weights)];
#pragma unroll
        for (int k = 0; k < In; ++k) held[k] = load_streaming<WIDTH>(all.x[k] + start + i);
        all.load_weights(weight, i, n);
        all.template write<true>([&](int) { return found; }, held, weight, start + i);
    }
    beside.write(all, start, found);
}

// ---- the kernel of an operator

#define ROW_OPERATOR(Op, In, Weights, Out, Numbers) ROW_KERNEL(Op, In, Weights, Out, Numbers)
#define ROW_KERNEL(Op, In, Weights, Out, Numbers)                                                                       \
    extern "C" __global__ void CLUSTER_SHAPE __launch_bounds__(GROUP * ROWS, MIN_BLOCKS) ENTRY(                         \
        X_PARAMETERS_##In W_PARAMETERS_##Weights Y_PARAMETERS_##Out i64 rows, int n, i64 inner N_PARAMETERS_##Numbers) { \
        follow_previous();                                                                                              \
        const Rows<Op, In, Weights, Out> all = {                                                                        \
            N_VALUES_##Numbers, X_VALUES_##In, W_VALUES_##Weights, Y_VALUES_##Out};                                     \
        WALK(all, rows, n, inner);                                                                                      \
    }
