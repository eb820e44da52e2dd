// The loss of each row of logits, and its gradient times g = 1 / count, or 1 without a count: one read and one write. Blocks stay
// and walk down rows. Of a row each thread has RING vectors in shared memory and HELD in registers; once it has looked at one in
// shared memory for the second time, it asks for that of the next row. It reads back what it asked for itself, so that the ring
// needs no barrier. Logits lie `step` apart from row to row; gradients are contiguous.
#include "row_counts.cuh"
#include "row_losses.cuh"
#include "row_ring.cuh"
#include "row_values.cuh"

#ifndef RING
#define RING 4
#endif
#ifndef HELD
#define HELD 0
#endif
#ifndef BATCH  // vectors of a thread that are asked for and looked at together
#define BATCH 4
#endif
static_assert(RING % BATCH == 0, "whole batches");
constexpr int BATCHES = RING / BATCH;

// Vectors of a thread from `first` on, into registers and into the state of the row; those behind the row's last are left out.
template <int Many, typename From>
__device__ __forceinline__ void look_at(Logits& seen, int first, int count, From from) {
    seen.add([&](auto f) {
#pragma unroll
        for (int k = 0; k < Many; ++k) {
            if (column(first + k) >= count) continue;
            float values[WIDTH];
            to_floats(values, from(k));
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) f(&values[j]);
        }
    });
}

extern "C" __global__ void __launch_bounds__(GROUP, MIN_BLOCKS)
cross_entropy_with_gradient_staying(
    const T* __restrict__ logits, const i64* __restrict__ target, const float* __restrict__ counted, float* __restrict__ loss,
    T* __restrict__ grad, i64 rows, int n, i64 step, i64 ignored, float smoothing) {
    __shared__ JoinRoom<Logits> room[2];
    if (FEW) let_next_start();
    i64 row = blockIdx.x, wanted = target[row];
    Peel part = Peel::of<WIDTH>(logits + row * step, n);
    auto ask_for = [&](int v, const T* x, const Peel& of, bool there) {
        const bool inside = there && column(v) < of.tail - of.head;
        copy_async<sizeof(Elements)>(shared_address(place<1>(0, 0, v)), x + of.head + column(v), inside);
        if ((v + 1) % BATCH == 0) copy_async_commit();
    };
    for (int v = 0; v < RING; ++v) ask_for(v, logits + row * step, part, true);
    const float g = weight_of_rows(counted, target, rows, ignored, threadIdx.x);
    for (int turn = 0; row < rows; row += gridDim.x, turn ^= 1) {
        const T* const x = logits + row * step;
        const int count = part.tail - part.head;
        const Target t(wanted, n, ignored);
        const bool more = row + gridDim.x < rows;
        const i64 following = more ? row + gridDim.x : row;
        wanted = target[following];
        Elements held[at_least_one(HELD)];
#pragma unroll
        for (int k = 0; k < HELD; ++k)
            if (column(RING + k) < count) held[k] = load<WIDTH>(x + part.head + column(RING + k));
        const int beside = (int)threadIdx.x < part.few ? part.beside(threadIdx.x) : -1;
        const float single = beside >= 0 ? to_float(x[beside]) : 0.0f;
        Logits seen;
#pragma unroll 1
        for (int v = 0; v < RING; v += BATCH) {
            copy_async_commit();  // an empty group, so that as many may always be under way
            copy_async_wait<BATCHES>();
            Elements batch[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; ++k) batch[k] = load<WIDTH>(place<1>(0, 0, v + k));
            look_at<BATCH>(seen, v, count, [&](int k) { return batch[k]; });
        }
        if (HELD) look_at<HELD>(seen, RING, count, [&](int k) { return held[k]; });
        if (beside >= 0) seen.add([&](auto f) { f(&single); });

        const RowLoss found(joined(seen, seen, room[turn]), t, n, smoothing, g);
        const T* const after = logits + following * step;
        const Peel next = Peel::of<WIDTH>(after, n);
        T* const y = grad + row * n;
        const bool wide = starts_vector(y + part.head);
        auto write = [&](const Elements& values, int v) {
            const int i = part.head + column(v);
            if (i >= part.tail) return;
            const Elements gradients = found.gradients(values, i, smoothing, loss + row);
            if (wide) store_whole(y + i, gradients);
            else store_row(y + i, gradients, false);
        };
#pragma unroll BATCH
        for (int v = 0; v < RING; ++v) {
            const Elements values = load<WIDTH>(place<1>(0, 0, v));
            ask_for(v, after, next, more);
            write(values, v);
        }
#pragma unroll
        for (int k = 0; k < HELD; ++k) write(held[k], RING + k);
        if (beside >= 0) y[beside] = from_float<T>(found.single(single, beside, smoothing, loss + row));
        if (found.constant && threadIdx.x == 0) loss[row] = loss_without_class(found.value, rows);
        part = next;
    }
}
