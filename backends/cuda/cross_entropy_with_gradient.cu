// The loss of each row of logits, and its gradient times g = 1 / count, or 1 without a count: one read and one write. Blocks stay
// and walk down rows. Of a row each thread has HELD vectors in registers and RING in shared memory; once it has looked at one for
// the second time, it asks for that of the next row in its place, and LAG batches later it looks at that for the first time: reads,
// writes and exponentials go on side by side, but for the last batches of a row, whose sum the next gradients wait for. A thread
// reads back what it asked for itself, so that the ring needs no barrier. Logits lie `step` apart; gradients are contiguous.
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
#define BATCH 2
#endif
#ifndef LAG  // batches between asking for one and looking at it
#define LAG 1
#endif
#ifndef AHEAD  // vectors of a thread that are brought into L2 before they are asked for
#define AHEAD 0
#endif
#ifndef WHOLE  // rows consist of whole vectors
#define WHOLE 0
#endif
static_assert(RING % BATCH == 0, "whole batches");
constexpr int BATCHES = RING / BATCH;
static_assert(LAG >= 1 && LAG <= BATCHES, "a batch is looked at before its place is asked for again");

// Where the vectors of a row lie in memory; of no row if n is 0.
struct Row {
    const T* x;
    Peel part;
    __device__ __forceinline__ Row(const T* x, int n) : x(x), part(WHOLE ? Peel{0, n, 0} : Peel::of<WIDTH>(x, n)) {}
    __device__ __forceinline__ bool has(int v) const { return column(v) < part.tail - part.head; }
    __device__ __forceinline__ const T* at(int v) const { return x + part.head + column(v); }
};

template <int Many>
__device__ __forceinline__ void look_at(Logits& seen, int first, const Row& row, const Elements (&batch)[Many]) {
    seen.add([&](auto f) {
#pragma unroll
        for (int k = 0; k < Many; ++k) {
            if (!row.has(first + k)) continue;
            float values[WIDTH];
            to_floats(values, batch[k]);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) f(&values[j]);
        }
    });
}

// Batch b of a row that was asked for, with at most LAG batches after it.
__device__ __forceinline__ void look_at_batch(Logits& seen, int b, const Row& row) {
    copy_async_wait<LAG>();
    Elements batch[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; ++k) batch[k] = load<WIDTH>(place<1>(0, 0, b * BATCH + k));
    look_at(seen, HELD + b * BATCH, row, batch);
}

#if AHEAD
__device__ __forceinline__ void bring_into_l2(const T* from, int elements) {
    if (threadIdx.x == 0 && elements > 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(elements * (int)sizeof(T)) : "memory");
}
#endif

extern "C" __global__ void __launch_bounds__(GROUP, MIN_BLOCKS)
cross_entropy_with_gradient_staying(
    const T* __restrict__ logits, const i64* __restrict__ target, const float* __restrict__ counted, float* __restrict__ loss,
    T* __restrict__ grad, i64 rows, int n, i64 step, i64 ignored, float smoothing) {
    __shared__ JoinRoom<Logits> room[2];
    const float g = counted ? 1.0f / counted[0] : 1.0f;
    Elements held[at_least_one(HELD)];
    auto hold = [&](int k, const Row& row) {
        if (row.has(k)) held[k] = load<WIDTH>(row.at(k));
    };
    auto ask_for = [&](int v, const Row& row) {
        copy_async<sizeof(Elements)>(shared_address(place<1>(0, 0, v)), row.at(HELD + v), row.has(HELD + v));
        if ((v + 1) % BATCH == 0) copy_async_commit();
    };
    i64 row = blockIdx.x, wanted = target[row];
    Row here(logits + row * step, n);
    Logits seen;
#pragma unroll
    for (int k = 0; k < HELD; ++k) hold(k, here);
    for (int v = 0; v < RING; ++v) ask_for(v, here);
    copy_async_wait<0>();
#pragma unroll 1
    for (int b = 0; b < BATCHES - LAG; ++b) look_at_batch(seen, b, here);
    for (int turn = 0; row < rows; row += gridDim.x, turn ^= 1) {
        const Target t(wanted, n, ignored);
        const bool more = row + gridDim.x < rows;
        const i64 following = more ? row + gridDim.x : row;
        wanted = target[following];
        const int beside = (int)threadIdx.x < here.part.few ? here.part.beside(threadIdx.x) : -1;
        const float single = beside >= 0 ? to_float(here.x[beside]) : 0.0f;
        if (HELD) look_at(seen, 0, here, held);
#pragma unroll 1
        for (int b = BATCHES - LAG; b < BATCHES; ++b) {
            copy_async_commit();  // an empty group, so that as many may always be under way
            look_at_batch(seen, b, here);
        }
        if (beside >= 0) seen.add([&](auto f) { f(&single); });
        const RowLoss found(joined(seen, seen, room[turn]), t, n, smoothing, g);

        const Row next(logits + following * step, more ? n : 0);
        T* const y = grad + row * n;
        const bool wide = starts_vector(y + here.part.head);
        auto write = [&](const Elements& values, int v) {
            const int i = here.part.head + column(v);
            if (i >= here.part.tail) return;
            const Elements gradients = found.gradients(values, i, smoothing, loss + row);
            if (WHOLE) store(y + i, gradients);
            else store_row(y + i, gradients, wide);
        };
#if AHEAD
        auto bring = [&](int v, int many) {
            const bool of_next = v < RING + HELD;
            const i64 which = of_next ? row + gridDim.x : row + 2 * gridDim.x;
            const int first = (of_next ? v : v - RING - HELD) * GROUP * WIDTH;
            if (which < rows) bring_into_l2(logits + which * step + first, min(many * GROUP * WIDTH, n - first));
        };
        if (WHOLE) bring(AHEAD, HELD);
#endif
#pragma unroll
        for (int k = 0; k < HELD; ++k) {
            write(held[k], k);
            hold(k, next);
        }
        seen = Logits();
#pragma unroll 1
        for (int b = 0; b < BATCHES; ++b) {
            Elements batch[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; ++k) batch[k] = load<WIDTH>(place<1>(0, 0, b * BATCH + k));
#if AHEAD
            if (WHOLE) bring(HELD + b * BATCH + AHEAD, BATCH);
#endif
#pragma unroll
            for (int k = 0; k < BATCH; ++k) ask_for(b * BATCH + k, next);
#pragma unroll
            for (int k = 0; k < BATCH; ++k) write(batch[k], HELD + b * BATCH + k);
            if (b >= LAG) look_at_batch(seen, b - LAG, next);
        }
        if (beside >= 0) y[beside] = from_float<T>(found.single(single, beside, smoothing, loss + row));
        if (found.constant && threadIdx.x == 0) loss[row] = found.value;
        here = next;
    }
}
