// Pieces of rows of logits, a block for each. Of few long rows one launch looks at them, the next starts early and goes on from what
// that leaves.
//
//   -DSTATES=n   such pieces of a row for each lane of a warp
#pragma once

#include "dependent_launch.cuh"
#include "row_losses.cuh"

#ifndef ALIGNED  // every row starts at a vector and ends with one
#define ALIGNED 0
#endif
#ifndef STATES
#define STATES 1
#endif

// A piece in the registers of its block.
struct HeldPiece {
    Peel peel;
    Beside<T, 1, WIDTH, GROUP> beside;  // logits that are in no vector
    int first, left;                    // this thread's first vector, and how many elements there are from it on
    Elements held[UNROLL];

    template <typename Load>
    __device__ __forceinline__ HeldPiece(const T* x, int n, int piece, Load load)
        : peel(ALIGNED ? Peel{0, n, 0} : Peel::of<WIDTH>(x, n)), beside(peel, !ALIGNED && piece == 0) {
        first = peel.head + (piece * UNROLL * GROUP + threadIdx.x) * WIDTH, left = peel.tail - first;
        each([&](int u, int i) { held[u] = load(x + first + i); });
        const T* const rows[] = {x};
        beside.ask(rows, 0);
    }
    template <typename F>
    __device__ __forceinline__ void each(F f) const {  // f(vector, its place after the first)
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (u * GROUP * WIDTH < left) f(u, u * GROUP * WIDTH);
    }
    __device__ __forceinline__ Logits seen() const {
        Logits piece;
        piece.add([&](auto f) {
            each([&](int u, int) {
                float values[WIDTH];
                to_floats(values, held[u]);
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) f(&values[j]);
            });
            beside.each([&](int b) {
                float single[1];
                beside.take(single, b);
                f(single);
            });
        });
        return piece;
    }
    // The gradients, to row y; if the target is in the piece, the loss of the row too. Streaming: what L2 has stays there.
    template <bool Streaming = false>
    __device__ __forceinline__ void write(T* y, const RowLoss& found, float smoothing, float* loss) const {
        beside.each([&](int b) {
            float single[1];
            beside.take(single, b);
            y[beside.at[b]] = from_float<T>(found.single(single[0], beside.at[b], smoothing, loss));
        });
        const bool wide = ALIGNED || starts_vector(y + peel.head);
        each([&](int u, int i) {
            const Elements gradients = found.gradients(held[u], first + i, smoothing, loss);
            if (wide && !Streaming) store_whole(y + first + i, gradients);
            else store_row(y + first + i, gradients, wide);
        });
    }
};

// What is known of a piece, as one launch or block leaves it to another: {maximum, sum of exponentials}, with smoothing {sum, 1}
// beside it.
constexpr int WORDS = SMOOTHED ? 2 : 1;

// Adds a piece to those before it.
__device__ __forceinline__ void add_piece(Logits& row, float2 piece) {
    LogSumExp& e = row.exponentials;
    e.rescale(fmaxf(e.m, piece.x), Logits::factor);
    if (piece.y != 0.0f) e.sum += piece.y * fast_exp2((piece.x - e.m) * Logits::factor);
}

// Of the pieces of one row, for a warp: asked for, then put together in every lane.
struct RowStates {
    float2 held[STATES][WORDS];

    __device__ __forceinline__ void ask(const float2* states, int pieces) {
#pragma unroll
        for (int k = 0; k < STATES; ++k) {
            const int piece = 32 * k + threadIdx.x % 32;
#pragma unroll
            for (int w = 0; w < WORDS; ++w)
                held[k][w] = piece < pieces ? __ldcg(states + piece * WORDS + w) : make_float2(w ? 0.0f : Max::identity(), 0.0f);
        }
    }
    __device__ __forceinline__ Logits total() const {
        Logits row;
#pragma unroll
        for (int k = 0; k < STATES; ++k) {
            add_piece(row, held[k][0]);
            if (SMOOTHED) row.sum += held[k][WORDS - 1].x;
        }
        row.join(row, Lanes<32>());
        return row;
    }
};

// What the losses of all rows, at most 32 for each warp of the only block that has them, add up to, and how many rows count: in
// every thread, in one order. loss_of(row, its state, its target, its logit there) is asked once for each row.
template <int Threads, typename F>
__device__ __forceinline__ float2 all_losses(
    const T* logits, const i64* target, const float2* states, int rows, int n, i64 step, i64 ignored, int pieces, F loss_of) {
    constexpr int Warps = Threads / 32, Together = cdiv(4, STATES);  // rows whose states are asked for at a time
    __shared__ float2 scratch[Warps];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = warp + Warps * lane;
    const Target wanted(mine < rows ? target[mine] : ignored, n, ignored);
    const float chosen = wanted.counts && wanted.is_class ? to_float(logits[mine * step + wanted.value]) : 0.0f;
    wait_for_previous();
    Logits found;
    for (int k = 0; warp + Warps * k < rows; k += Together) {
        RowStates some[Together];
#pragma unroll
        for (int u = 0; u < Together; ++u)
            some[u].ask(states + (i64)min(warp + Warps * (k + u), rows - 1) * pieces * WORDS, pieces);
#pragma unroll
        for (int u = 0; u < Together; ++u) {
            const Logits all = some[u].total();
            if (lane == k + u) found = all;
        }
    }
    const float loss = mine < rows ? loss_of(mine, found, wanted, chosen) : 0.0f;
    return group_sum<Threads>(make_float2(loss, wanted.counts ? 1.0f : 0.0f), scratch);
}
