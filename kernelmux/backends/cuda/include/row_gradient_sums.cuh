// Sums of the gradients of rows: those that a row needs of all its threads, and those down columns that a block leaves. And what
// of a peeled row is not in whole vectors.
#pragma once

#include "row_ring.cuh"

// ---- sums over a row

template <int Width, int K>
__device__ __forceinline__ void add_up_lanes(float (&s)[K]) {
#pragma unroll
    for (int step = Width / 2; step > 0; step /= 2)
#pragma unroll
        for (int k = 0; k < K; ++k) s[k] += shuffle_xor(s[k], step);
}

// Makes of each s[k] its sum over the threads of a row, the same in every thread. The chains of all k run side by side:
// one after the other each would wait for its own shuffles. Two rooms in turn serve any number of sums, a barrier each.
struct RowTotal {
    int turn = 0;

    template <int K>
    __device__ __forceinline__ void operator()(float (&s)[K]) {
        add_up_lanes<(GROUP < 32 ? GROUP : 32)>(s);
        if constexpr (WARPS > 1) {
            constexpr int Slots = power_above(WARPS);
            __shared__ float room[2][WARPS][K];
            const int lane = threadIdx.x % 32;
            if (lane == 0)
#pragma unroll
                for (int k = 0; k < K; ++k) room[turn][threadIdx.x / 32][k] = s[k];
            __syncthreads();
#pragma unroll
            for (int k = 0; k < K; ++k) s[k] = lane % Slots < WARPS ? room[turn][lane % Slots][k] : 0.0f;
            add_up_lanes<Slots>(s);
            turn ^= 1;
        }
    }
};

// ---- sums down columns

// Sums of neighbours as whole vectors: 4 bytes at a time a block of one row would write a sector of memory eight times.
__device__ __forceinline__ void store_sums(float* out, const float (&sum)[WIDTH]) {
    if (WIDTH % 4 == 0 && (!PEELED || reinterpret_cast<unsigned long long>(out) % 16 == 0))
#pragma unroll
        for (int j = 0; j + 3 < WIDTH; j += 4)
            *reinterpret_cast<float4*>(out + j) = make_float4(sum[j], sum[j + 1], sum[j + 2], sum[j + 3]);
    else
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) out[j] = sum[j];
}

// The columns beside the whole vectors of a peeled row that a thread has: the next row's are on their way too.
template <int In, int Sums>
struct SumsBeside : BesideRow<In> {
    static constexpr int ROOM = BesideRow<In>::ROOM;
    float w[ROOM], z[ROOM][In], sum[ROOM][Sums] = {};

    __device__ __forceinline__ SumsBeside(const T* weight, const Peel& peel, bool here = true) : BesideRow<In>(peel, here) {
        this->each([&](int b) { w[b] = to_float(weight[this->at[b]]); });
    }
    __device__ __forceinline__ void take() {
        this->each([&](int b) { BesideRow<In>::take(z[b], b); });
    }
};

// The sums of a row, or of the ROWS side by side, which are added in order, to partial[s * stride + i]. What is in the ring is
// of no more use; a stage of it has room for a sum of each column of each row.
template <int In, int Sums>
__device__ __forceinline__ void add_to_partial(
    const float (&sum)[VECTORS][Sums][WIDTH], const SumsBeside<In, Sums>& beside, const Peel& part, float* partial,
    i64 stride, int n) {
    const auto write = [&](float* out, int s) {
        for_each_vector(part.tail - part.head, [&](int i, int v) { store_sums(out + part.head + i, sum[v][s]); });
        beside.each([&](int b) { out[beside.at[b]] = beside.sum[b][s]; });
    };
    if constexpr (ROWS == 1) {
#pragma unroll
        for (int s = 0; s < Sums; ++s) write(partial + s * stride, s);
        return;
    }
    float* const room = reinterpret_cast<float*>(ring);
    copy_async_wait<0>();
#pragma unroll
    for (int s = 0; s < Sums; ++s) {
        __syncthreads();
        write(room + threadIdx.y * n, s);
        __syncthreads();
        for (int i = threadIdx.y * GROUP + threadIdx.x; i < n; i += GROUP * ROWS) {
            float all = 0.0f;
#pragma unroll 8
            for (int r = 0; r < ROWS; ++r) all += room[r * n + i];
            partial[s * stride + i] = all;
        }
    }
}
