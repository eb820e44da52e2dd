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
//   parts     blocks for PART_COLUMNS each, whose states go to `states`; up to GROUP of them to a row
//   results   follows: blocks for as many columns each, which read them again and know all of the row
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

// f(values of the inputs) for each column beside the vectors of a peeled row.
template <int In, typename F>
__device__ __forceinline__ void each_beside(const BesideRow<In>& beside, F f) {
    beside.each([&](int b) {
        float x[In];
        beside.take(x, b);
        f(x);
    });
}

template <typename Op, int In, int Weights, int Out>
__device__ __forceinline__ void write_beside(
    const Rows<Op, In, Weights, Out>& all, const BesideRow<In>& beside, i64 start, const typename Op::Row& row) {
    beside.each([&](int b) {
        float x[In];
        beside.take(x, b);
        all.write_single(row, x, start, beside.at[b]);
    });
}

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
    const Peel peel = peeled(all.x[0] + begin, n);
    const int from = block_in_cluster() * PART, first = peel.head + from, part = min(peel.tail - first, PART);
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
    BesideRow<In> beside(peel, block_in_cluster() == 0);
    beside.ask(all.x, begin);
    // Asked for before the reduction, which hides their latency, as far as 1,024 threads, or those of one block, have
    // registers for both.
    constexpr int REGISTERS = VECTORS * (In + Weights) * at_least_one((int)sizeof(Elements) / 4);
    constexpr int ROOM = 65536 / (GROUP * ROWS) < 255 ? 65536 / (GROUP * ROWS) - 48 : 160;
    constexpr bool EARLY =
        Weights > 0 && (FEW ? REGISTERS <= ROOM
                            : VECTORS * WIDTH <= 32 && sizeof(held) + Weights * VECTORS * sizeof(Elements) <= 128);
    if (EARLY)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) all.load_weights(weight[v], from + within(v, part), peel.head);
    State state;
    all.op.add(state, [&](auto f) {
        for_each_vector(count, [&](int, int v) { all.each_of(held[v], f); });
        each_beside(beside, f);
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
        if (!EARLY) all.load_weights(weight[v], from + within(v, part), peel.head);
        if (!EARLY && Weights > 0 && v >= INSIDE) count += first_word(weight[v][at_least_one(Weights) - 1]) & (int)(inner - 1);
        if (v < INSIDE || column(v) < count)
            all.template write<false>([&](int) { return found; }, held[v], weight[v], begin + first + column(v));
    }
    write_beside(all, beside, begin, found);
}

// ---- looped

constexpr int STEP = GROUP * WIDTH;  // columns that the threads of a block have at a time

// UNROLL vectors of a thread from column i on, of the row that begins at element `start`, as far as they are before `last`.
template <bool Streaming, typename Op, int In, int Weights, int Out>
__device__ __forceinline__ void load_columns(
    Elements (&held)[UNROLL][In], const Rows<Op, In, Weights, Out>& all, i64 start, int i, int last) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (i + u * STEP < last)
#pragma unroll
            for (int k = 0; k < In; ++k) {
                const T* const from = all.x[k] + start + i + u * STEP;
                held[u][k] = Streaming ? load_streaming<WIDTH>(from) : load<WIDTH>(from);
            }
}

// Adds the columns from `first` to `last`.
template <typename Op, int In, int Weights, int Out>
__device__ __forceinline__ void add_columns(
    const Rows<Op, In, Weights, Out>& all, typename Op::State& state, i64 start, int first, int last) {
    for (int i = first + threadIdx.x * WIDTH; i < last; i += UNROLL * STEP) {
        Elements held[UNROLL][In];
        load_columns<false>(held, all, start, i, last);
        all.op.add(state, [&](auto f) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (i + u * STEP < last) all.each_of(held[u], f);
        });
    }
}

// Their results, of a row that is peeled from column `head` on; the first UNROLL vectors are `held`.
template <typename Op, int In, int Weights, int Out>
__device__ __forceinline__ void write_columns(
    const Rows<Op, In, Weights, Out>& all, const typename Op::Row& row, Elements (&held)[UNROLL][In], i64 start, int first,
    int last, int head) {
    for (int i = first + threadIdx.x * WIDTH; i < last;) {
        Elements weight[UNROLL][at_least_one(Weights)];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u * STEP < last) all.load_weights(weight[u], i + u * STEP - head, head);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u * STEP < last) all.template write<true>([&](int) { return row; }, held[u], weight[u], start + i + u * STEP);
        i += UNROLL * STEP;
        load_columns<true>(held, all, start, i, last);
    }
}

template <typename Op, int In, int Weights, int Out>
__device__ __forceinline__ void looped(const Rows<Op, In, Weights, Out>& all, i64, int n, i64) {
    using State = typename Op::State;
    __shared__ JoinRoom<State> room;
    const i64 start = blockIdx.x * (i64)n;
    const Peel peel = peeled(all.x[0] + start, n);
    BesideRow<In> beside(peel);
    beside.ask(all.x, start);
    State state;
    add_columns(all, state, start, peel.head, peel.tail);
    if (PEELED) all.op.add(state, [&](auto f) { each_beside(beside, f); });
    Elements held[UNROLL][In];  // asked for before the reduction, which hides their latency
    load_columns<true>(held, all, start, peel.head + threadIdx.x * WIDTH, peel.tail);
    const typename Op::Row found = all.op.finish(joined(all.op, state, room), n);
    write_columns(all, found, held, start, peel.head, peel.tail, peel.head);
    write_beside(all, beside, start, found);
}

// ---- parts, then results

#ifdef PART_COLUMNS
#define STATES_PARAMETER float* __restrict__ states,
#define STATES , states
#else
#define STATES_PARAMETER
#define STATES
#define PART_COLUMNS 1
#endif

// Columns of a row, whole vectors, that the block takes; the block with the first of them has those beside as well.
struct PartOfRow {
    Peel peel;
    i64 start;
    int count, index, first, last;

    __device__ __forceinline__ PartOfRow(const T* x, int n) : count(cdiv(n, PART_COLUMNS)), index(blockIdx.x % count) {
        start = blockIdx.x / count * (i64)n;
        peel = peeled(x + start, n);
        first = peel.head + index * PART_COLUMNS;
        last = min(peel.tail, first + PART_COLUMNS);
    }
};

// What block `index` found. States consist of floats.
template <typename State>
__device__ __forceinline__ void leave(float* states, i64 index, const State& found) {
    constexpr int Count = sizeof(State) / 4;
    float words[Count];
    memcpy(words, &found, sizeof(State));
#pragma unroll
    for (int i = 0; i < Count; ++i) states[index * Count + i] = words[i];
}
template <typename State>
__device__ __forceinline__ State found_by(const float* states, i64 index) {
    constexpr int Count = sizeof(State) / 4;
    float words[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) words[i] = __ldcg(states + index * Count + i);
    State found;
    memcpy(&found, words, sizeof(State));
    return found;
}

template <typename Op, int In, int Weights, int Out>
__device__ __forceinline__ void parts(const Rows<Op, In, Weights, Out>& all, i64, int n, i64, float* states) {
    using State = typename Op::State;
    __shared__ JoinRoom<State> room;
    const PartOfRow part(all.x[0], n);
    BesideRow<In> beside(part.peel, part.index == 0);
    beside.ask(all.x, part.start);
    State state;
    add_columns(all, state, part.start, part.first, part.last);
    if (PEELED) all.op.add(state, [&](auto f) { each_beside(beside, f); });
    let_next_start();
    const State found = joined(all.op, state, room);
    if (threadIdx.x == 0) leave(states, blockIdx.x, found);
}

template <typename Op, int In, int Weights, int Out>
__device__ __forceinline__ void results(const Rows<Op, In, Weights, Out>& all, i64, int n, i64, float* states) {
    using State = typename Op::State;
    __shared__ JoinRoom<State> room;
    const PartOfRow part(all.x[0], n);
    BesideRow<In> beside(part.peel, part.index == 0);
    beside.ask(all.x, part.start);
    Elements held[UNROLL][In];
    load_columns<true>(held, all, part.start, part.first + threadIdx.x * WIDTH, part.last);
    State state;
    wait_for_previous();
    if ((int)threadIdx.x < part.count) state = found_by<State>(states, blockIdx.x - part.index + threadIdx.x);
    const typename Op::Row found = all.op.finish(joined(all.op, state, room), n);
    write_columns(all, found, held, part.start, part.first, part.last, part.peel.head);
    write_beside(all, beside, part.start, found);
}

// ---- the kernel of an operator

#define ROW_OPERATOR(Op, In, Weights, Out, Numbers) ROW_KERNEL(Op, In, Weights, Out, Numbers)
#define ROW_KERNEL(Op, In, Weights, Out, Numbers)                                                                       \
    extern "C" __global__ void CLUSTER_SHAPE __launch_bounds__(GROUP * ROWS, MIN_BLOCKS) ENTRY(                         \
        X_PARAMETERS_##In W_PARAMETERS_##Weights Y_PARAMETERS_##Out STATES_PARAMETER i64 rows, int n,                   \
        i64 inner N_PARAMETERS_##Numbers) {                                                                             \
        follow_previous();                                                                                              \
        const Rows<Op, In, Weights, Out> all = {                                                                        \
            N_VALUES_##Numbers, X_VALUES_##In, W_VALUES_##Weights, Y_VALUES_##Out};                                     \
        WALK(all, rows, n, inner STATES);                                                                               \
    }
