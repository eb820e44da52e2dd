// The loss of each row of logits, and its gradient times g = 1 / count, or 1 without a count: one read and one write. Clusters of
// CLUSTER blocks stay and walk down rows. A thread has VECTORS vectors of a row, and sees those of all its rows as one sequence, of
// which the ring in shared memory holds VECTORS + LEAD. With each batch it looks at for the second time, to write the gradients, it
// looks at that of the next row for the first time, and asks for what lies LEAD vectors behind that: so reads, writes and
// exponentials never wait for the end of a row. A thread reads back what it asked for itself, and the ring needs no barrier.
// Logits lie `step` apart from row to row; gradients are contiguous.
#include "row_losses.cuh"
#include "row_meeting.cuh"
#include "row_parameters.cuh"

#ifndef LEAD
#define LEAD 4
#endif
#ifndef BATCH  // vectors of a thread that are asked for and looked at together
#define BATCH 2
#endif
#ifndef WHOLE  // rows of logits and gradients consist of whole vectors
#define WHOLE 0
#endif
constexpr int RING = VECTORS + LEAD;
static_assert(VECTORS % BATCH == 0 && LEAD % BATCH == 0, "whole batches");
static_assert(LEAD >= BATCH && LEAD <= VECTORS, "what is asked for is of the next row or of the one after it");

alignas(16) extern __shared__ unsigned char ring[];

__device__ __forceinline__ T* place(int slot) {
    return reinterpret_cast<T*>(ring) + (slot * GROUP + threadIdx.x) * WIDTH;
}
__device__ __forceinline__ int next_slot(int slot) { return slot + BATCH == RING ? 0 : slot + BATCH; }

// Where this thread's vectors of a row lie in memory; of no row if n is 0.
struct Row {
    const T* x;
    Peel part;
    int beside;  // column of the thread's single logit, or -1

    __device__ __forceinline__ Row(const T* x, int n) : x(x), part(WHOLE ? Peel{0, n, 0} : Peel::of<WIDTH>(x, n)) {
        beside = (int)threadIdx.x < part.few && block_in_cluster() == 0 ? part.beside(threadIdx.x) : -1;
    }
    __device__ __forceinline__ int column_of(int v) const {
        return part.head + ((v * CLUSTER + block_in_cluster()) * GROUP + (int)threadIdx.x) * WIDTH;
    }
    __device__ __forceinline__ bool has(int v) const { return column_of(v) < part.tail; }
    __device__ __forceinline__ float single() const { return beside >= 0 ? to_float(x[beside]) : 0.0f; }

    // Batch v of the row, into the ring.
    __device__ __forceinline__ void ask_for(int v, int slot) const {
#pragma unroll
        for (int k = 0; k < BATCH; ++k)
            copy_async<sizeof(Elements)>(shared_address(place(slot + k)), x + column_of(v + k), has(v + k));
        copy_async_commit();
    }
    // The same from the ring, into the state of the row.
    __device__ __forceinline__ void look_at(int v, int slot, Logits& seen) const {
        Elements batch[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) batch[k] = load<WIDTH>(place(slot + k));
        seen.add([&](auto f) {
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                if (!has(v + k)) continue;
                float values[WIDTH];
                to_floats(values, batch[k]);
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) f(&values[j]);
            }
        });
    }
    __device__ __forceinline__ void look_beside(float single, Logits& seen) const {
        if (beside >= 0) seen.add([&](auto f) { f(&single); });
    }
};

extern "C" __global__ void CLUSTER_SHAPE __launch_bounds__(GROUP, MIN_BLOCKS)
cross_entropy_with_gradient_staying(
    const T* __restrict__ logits, const i64* __restrict__ target, const float* __restrict__ counted, float* __restrict__ loss,
    T* __restrict__ grad, i64 rows, int n, i64 step, i64 ignored, float smoothing) {
    __shared__ Meeting<Logits> meeting;
    const float g = counted ? 1.0f / counted[0] : 1.0f;
    const i64 stride = gridDim.x / CLUSTER;
    auto row_at = [&](i64 row) { return row < rows ? Row(logits + row * step, n) : Row(logits, 0); };
    i64 row = blockIdx.x / CLUSTER;
    Row here = row_at(row), next = row_at(row + stride);
    for (int v = 0; v < VECTORS; v += BATCH) here.ask_for(v, v);
    for (int v = 0; v < LEAD; v += BATCH) next.ask_for(v, VECTORS + v);
    meeting.init();
    Logits seen;
    float single = here.single();
    copy_async_wait<LEAD / BATCH>();
#pragma unroll 1
    for (int v = 0; v < VECTORS; v += BATCH) here.look_at(v, v, seen);
    here.look_beside(single, seen);
    meeting.tell(seen, seen, 0);

    int slot = 0, slot_of_next = VECTORS;
    unsigned turn = 0, parity = 0;
    for (; row < rows; row += stride) {
        const RowLoss found(meeting.hear(seen, turn, parity), Target(target[row], n, ignored), n, smoothing, g);
        parity ^= turn, turn ^= 1;
        const Row after = row_at(row + 2 * stride);
        const float single_of_next = next.single();
        T* const y = grad + row * n;
        const bool wide = starts_vector(y + here.part.head);
        seen = Logits();
#pragma unroll 1
        for (int v = 0; v < VECTORS; v += BATCH) {
            Elements batch[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; ++k) batch[k] = load<WIDTH>(place(slot + k));
            Row asked = next;
            if (v + LEAD >= VECTORS) asked = after;
            asked.ask_for((v + LEAD) % VECTORS, slot);
            copy_async_wait<LEAD / BATCH>();
            next.look_at(v, slot_of_next, seen);
            if (v + BATCH == VECTORS && row + stride < rows) {  // the last gradients are on their way while the warps meet
                next.look_beside(single_of_next, seen);
                meeting.tell(seen, seen, turn);
            }
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                if (!here.has(v + k)) continue;
                const int i = here.column_of(v + k);
                const Elements gradients = found.gradients(batch[k], i, smoothing, loss + row);
                if (WHOLE) store(y + i, gradients);
                else store_row(y + i, gradients, wide);
            }
            slot = next_slot(slot), slot_of_next = next_slot(slot_of_next);
        }
        if (here.beside >= 0) y[here.beside] = from_float<T>(found.single(single, here.beside, smoothing, loss + row));
        if (found.constant && threadIdx.x == 0 && block_in_cluster() == 0) loss[row] = found.value;
        here = next, next = after, single = single_of_next;
    }
    cluster_arrive();  // no block leaves while another may still tell it something
    cluster_wait();
}
