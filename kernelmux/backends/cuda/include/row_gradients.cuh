// Gradients of a row operator with weights: one tensor like the rows, and sums over all rows for each column.
//
// An operator is a struct as in row_walks.cuh, with these differences:
//
//     template <typename Each> void add(State& s, Each each) const;    // each(f) calls f(x, w)
//     // From the state of a thread; total(s) makes of each s[k] its sum over all threads of the row, which all call it.
//     template <typename Total> Row finish(const State& s, int n, Total& total) const;
//     // The gradient of column i; adds what the row gives to the sums of the column.
//     void apply(const float* x, float w, const Row& row, float& grad, float* sums) const;
//
//     ROW_GRADIENTS(RmsNormBackward, 2, 1, 1)    // inputs [rows, n] beside one weight [n], sums, numbers
//
// The line makes one kernel called ENTRY. WALK says what it does:
//   staying     blocks stay and walk down rows gridDim.x * ROWS apart, with the weights and their share of the sums in
//               registers; rows arrive through a ring in shared memory, so that the next are on their way while a block
//               works on one. What is left is the latency of a row: its values are read, summed over the block and
//               written. So the sums that a row needs are added up at once, as chains of shuffles side by side. Rows that
//               are peeled are as many apart as a vector has elements, or a multiple: those of a thread begin alike.
//               ROWS short rows are side by side; beyond the last row such a block asks for nothing.
//   pieces      blocks for PIECES pieces of each row, whose states go to `stats`
//   descending  follows: tiles of columns that walk down `chunk` rows, knowing all of a row, and add up the sums; ROWS rows
//               side by side where there are few tiles
// The sums of a block go to partial: [sums, blocks or chunks, n], and another kernel adds them; those of one chunk to `total`.
//
// us on an H200, bf16, with that second kernel; "in turn": one sum of a row after the other, and not side by side.
//                                           rms_norm  add_rms_norm  layer_norm
//     16384 x 8192   staying                     211           269         227
//                    staying, in turn            230           300         245
//     2048 x 18432   staying                      90           110   not taken
//                    staying, in turn             99           121         164
//                    twice: rows, then columns   107           132         119
#pragma once

#include "dependent_launch.cuh"
#include "row_gradient_sums.cuh"
#include "row_parameters.cuh"

#ifndef HOLD  // 1: the values of a row are taken from the ring once, and not a second time for the results
#define HOLD 0
#endif

template <typename Op, int In, int Sums>
struct Gradients {
    Op op;
    const T* x[In];
    const T* w;
    T* grad;
    float *stats, *partial;
    T* total[2];
    i64 rows;
    int n, chunk;
};

// The gradients of one vector, and what it adds to the sums.
template <typename Op, int In, int Sums>
__device__ __forceinline__ Elements gradients(
    const Op& op, const Elements (&x)[In], const Elements& w, const typename Op::Row& row, float (&sum)[Sums][WIDTH]) {
    float a[In][WIDTH], b[WIDTH], results[WIDTH];
#pragma unroll
    for (int i = 0; i < In; ++i) to_floats(a[i], x[i]);
    to_floats(b, w);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        float z[In], s[Sums];
#pragma unroll
        for (int i = 0; i < In; ++i) z[i] = a[i][j];
#pragma unroll
        for (int i = 0; i < Sums; ++i) s[i] = sum[i][j];
        op.apply(z, b[j], row, results[j], s);
#pragma unroll
        for (int i = 0; i < Sums; ++i) sum[i][j] = s[i];
    }
    return from_floats<T>(results);
}

// f(x, w) for each column of a vector.
template <int In, typename F>
__device__ __forceinline__ void each_pair(const Elements (&x)[In], const Elements& w, F f) {
    float a[In][WIDTH], b[WIDTH];
#pragma unroll
    for (int i = 0; i < In; ++i) to_floats(a[i], x[i]);
    to_floats(b, w);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        float z[In];
#pragma unroll
        for (int i = 0; i < In; ++i) z[i] = a[i][j];
        f(z, b[j]);
    }
}

// ---- staying

// Zeros in place of a row.
template <int In>
__device__ __forceinline__ void clear(int stage) {
    const Elements none = {};
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
#pragma unroll
        for (int i = 0; i < In; ++i) store(place<In>(stage, i, v), none);
}

template <typename Op, int In, int Sums>
__device__ __forceinline__ void staying(const Gradients<Op, In, Sums>& all) {
    const i64 step = gridDim.x * (i64)ROWS;
    i64 row = blockIdx.x * (i64)ROWS + threadIdx.y;
    const Peel part = peeled(all.grad + row * all.n, all.n);
    const int n = part.tail - part.head;  // of whole vectors
    Elements w[VECTORS];
    float sum[VECTORS][Sums][WIDTH] = {};
    for_each_vector(n, [&](int i, int v) { w[v] = weights_of(all.w, i, part.head); });
    // Beyond the last row a known one is asked for once more, and not used. Of ROWS side by side none is: all blocks would
    // ask for the same few lines of memory.
    const auto there = [&](i64 row) { return ROWS == 1 || row < all.rows; };
    const auto start = [&](i64 row) {
        return (ROWS > 1 || row < all.rows ? row : PEELED ? (i64)blockIdx.x : all.rows - 1) * all.n + part.head;
    };
    const auto ask_for = [&](int stage, i64 row) {
        if (there(row)) return ask(stage, all.x, start(row), n);
        clear<In>(stage);
        copy_async_commit();
    };
    for (int s = 0; s < STAGES - 1; ++s) ask_for(s, row + s * step);
    SumsBeside<In, Sums> beside(all.w, part);
    if (there(row)) beside.ask(all.x, start(row) - part.head);
    int stage = 0;
    RowTotal total;
    for (i64 top = blockIdx.x * (i64)ROWS; top < all.rows; top += step, row += step) {
        ask_for((stage + STAGES - 1) % STAGES, row + (STAGES - 1) * step);
        beside.take();
        if (there(row + step)) beside.ask(all.x, start(row + step) - part.head);
        copy_async_wait<STAGES - 1>();
        const int here = stage;
        typename Op::State state;
        Elements held[HOLD ? VECTORS : 1][In];
        if (HOLD) for_each_vector(n, [&](int, int v) { take(held[HOLD * v], here, v); });
        all.op.add(state, [&](auto f) {
            for_each_vector(n, [&](int, int v) {
                if (!HOLD) take(held[0], here, v);
                each_pair(held[HOLD * v], w[v], f);
            });
            beside.each([&](int b) { f(beside.z[b], beside.w[b]); });
        });
        stay_packed(w);
        if (HOLD)
#pragma unroll
            for (auto& x : held)
#pragma unroll
                for (Elements& one : x) stay_packed(one);
        const typename Op::Row found = all.op.finish(state, all.n, total);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        if (ROWS > 1 && row >= all.rows) continue;
        for_each_vector(n, [&](int i, int v) {
            if (!HOLD) take(held[0], here, v);
            store(all.grad + row * all.n + part.head + i, gradients(all.op, held[HOLD * v], w[v], found, sum[v]));
        });
        beside.each([&](int b) {
            float grad;
            all.op.apply(beside.z[b], beside.w[b], found, grad, beside.sum[b]);
            all.grad[row * all.n + beside.at[b]] = from_float<T>(grad);
        });
    }
    let_next_start();  // the kernel that adds up
    add_to_partial(sum, beside, part, all.partial + blockIdx.x * (i64)all.n, gridDim.x * (i64)all.n, all.n);
}

// ---- pieces, then descending

#ifndef PIECES  // of a row, a block for each: a power of two up to 32
#define PIECES 1
#endif

template <typename Op, int In, int Sums>
__device__ __forceinline__ void pieces(const Gradients<Op, In, Sums>& all) {
    const i64 start = blockIdx.x / PIECES * (i64)all.n;
    const int piece = (int)(blockIdx.x % PIECES);
    const Peel part = peeled(all.x[0] + start, all.n);
    const int first = part.head + piece * all.chunk, last = min(part.tail, first + all.chunk);
    typename Op::State state;
    SumsBeside<In, 1> beside(all.w, part, piece == 0);
    beside.ask(all.x, start);
    for (int i = first + threadIdx.x * WIDTH; i < last; i += UNROLL * GROUP * WIDTH) {
        Elements x[UNROLL][In], w[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {  // beyond the end the last vector once more: no load waits for a condition
            const int c = min(i + u * GROUP * WIDTH, last - WIDTH);
            w[u] = weights_of(all.w, c - part.head, part.head);
#pragma unroll
            for (int k = 0; k < In; ++k) x[u][k] = load<WIDTH>(all.x[k] + start + c);
        }
        all.op.add(state, [&](auto f) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (i + u * GROUP * WIDTH < last) each_pair(x[u], w[u], f);
        });
    }
    beside.take();
    if (PEELED) all.op.add(state, [&](auto f) { beside.each([&](int b) { f(beside.z[b], beside.w[b]); }); });
    let_next_start();
    RowTotal total;
    const int count = max(last - first, 0) + (piece == 0 ? part.few : 0);
    const typename Op::State sum = all.op.together(state, count, total);
    if (threadIdx.x == 0) memcpy(all.stats + blockIdx.x * (i64)(sizeof(sum) / 4), &sum, sizeof(sum));
}

struct PiecesTotal {
    template <int K>
    __device__ __forceinline__ void operator()(float (&s)[K]) const {
        add_up_lanes<PIECES>(s);
    }
};

// What `count` rows from `top` on need, from the states of their pieces, of which several are on their way at a time.
template <typename Op, int In, int Sums>
__device__ __forceinline__ void find_rows(
    const Gradients<Op, In, Sums>& all, typename Op::Row* found, i64 top, int count) {
    constexpr int Side = GROUP * ROWS / PIECES, Ahead = 4;
    const int thread = threadIdx.y * GROUP + threadIdx.x, piece = thread % PIECES;
    for (int first = thread / PIECES; first - thread / PIECES < count; first += Ahead * Side) {
        typename Op::State states[Ahead];
#pragma unroll
        for (int a = 0; a < Ahead; ++a) {
            const i64 row = top + min(first + a * Side, count - 1);
            memcpy(&states[a], all.stats + (row * PIECES + piece) * (sizeof(states[a]) / 4), sizeof(states[a]));
        }
#pragma unroll
        for (int a = 0; a < Ahead; ++a) {
            PiecesTotal total;
            const typename Op::Row one = all.op.finish(states[a], all.n, total);
            if (piece == 0 && first + a * Side < count) found[first + a * Side] = one;
        }
    }
    __syncthreads();
}

// The sums of column i on, or of the whole column if there is one chunk of rows.
template <typename Op, int In, int Sums, int Width>
__device__ __forceinline__ void write_sums(const Gradients<Op, In, Sums>& all, int s, int i, const float (&sum)[Width]) {
    float* const partial = all.partial + (s * (i64)gridDim.y + blockIdx.y) * all.n + i;
    if (gridDim.y == 1) store(all.total[s] + i, from_floats<T>(sum));
    else if constexpr (Width == WIDTH) store_sums(partial, sum);
    else *partial = sum[0];
}

template <typename Op, int In, int Sums>
__device__ __forceinline__ void descending(const Gradients<Op, In, Sums>& all) {
    constexpr int Rows = 64, Columns = GROUP * WIDTH;  // rows whose numbers are in shared memory, columns of the block
    __shared__ typename Op::Row found[Rows];
    __shared__ alignas(16) float sides[ROWS > 1 ? ROWS : 1][Sums][ROWS > 1 ? Columns : 1];
    const int n = all.n, i = (blockIdx.x * GROUP + threadIdx.x) * WIDTH, at = min(i, n - WIDTH);
    // From the last row to the first: what was read last is the most likely to be in L2 still.
    const i64 first = (gridDim.y - 1 - blockIdx.y) * (i64)all.chunk, last = min(all.rows, first + all.chunk);
    const Elements w = load<WIDTH>(all.w + at);
    float sum[Sums][WIDTH] = {};
    Elements x[UNROLL][In];
    const auto ask_for = [&](i64 row) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int k = 0; k < In; ++k)
                x[u][k] = load_streaming<WIDTH>(all.x[k] + min(row + u * ROWS, last - 1) * n + at);
    };
    ask_for(first + threadIdx.y);
    wait_for_previous();
    for (i64 top = first; top < last; top += Rows) {
        const int count = (int)min((i64)Rows, last - top);
        find_rows(all, found, top, count);
        for (int r = threadIdx.y; r < count; r += UNROLL * ROWS) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int row = r + u * ROWS;
                if (row >= count) break;
                const Elements grad = gradients(all.op, x[u], w, found[row], sum);
                if (i < n) store_streaming(all.grad + (top + row) * n + i, grad);
            }
            const i64 following = r + UNROLL * ROWS < count ? top + r + UNROLL * ROWS : top + Rows + threadIdx.y;
            if (following < last) ask_for(following);
        }
        __syncthreads();
    }
    let_next_start();
    if (ROWS == 1) {
        if (i < n)
#pragma unroll
            for (int s = 0; s < Sums; ++s) write_sums(all, s, i, sum[s]);
        return;
    }
#pragma unroll
    for (int s = 0; s < Sums; ++s) store_sums(&sides[threadIdx.y][s][threadIdx.x * WIDTH], sum[s]);
    __syncthreads();
    for (int c = threadIdx.y * GROUP + threadIdx.x; c < Columns && blockIdx.x * Columns + c < n; c += GROUP * ROWS)
#pragma unroll
        for (int s = 0; s < Sums; ++s) {
            float one[1] = {};
#pragma unroll
            for (int side = 0; side < ROWS; ++side) one[0] += sides[side][s][c];
            write_sums(all, s, blockIdx.x * Columns + c, one);
        }
}

// ---- the kernel of an operator

#define ROW_GRADIENTS(Op, In, Sums, Numbers)                                                                            \
    extern "C" __global__ void __launch_bounds__(GROUP * ROWS, MIN_BLOCKS) ENTRY(                                       \
        X_PARAMETERS_##In W_PARAMETERS_1 Y_PARAMETERS_1 float* __restrict__ stats, float* __restrict__ partial,         \
        T* __restrict__ total0, T* __restrict__ total1, i64 rows, int n, int chunk N_PARAMETERS_##Numbers) {            \
        const Gradients<Op, In, Sums> all = {                                                                           \
            N_VALUES_##Numbers, X_VALUES_##In, w0, y0, stats, partial, {total0, total1}, rows, n, chunk};               \
        WALK(all);                                                                                                      \
    }
