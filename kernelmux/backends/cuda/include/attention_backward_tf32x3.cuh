// Products of fp32 matrices by three products of tf32 each, on mma.sync, for attention's gradient: of x = hi + lo and y
// alike, hi hi + lo hi + hi lo. Operands lie in shared memory as they are and are split in registers.
//
// A tensor core cuts its sums off: what it adds up, of at most CHAIN steps, begins at 0 and is added to the sum so far by
// plain additions. Small products have a sum of their own. Of an operand that is infinite lo is NaN, and so is the sum of
// the small products, which then counts for nothing: the sum of the others is infinite or NaN as it should be. Nothing here
// flushes: lo of numbers near 2^-126 is below that.
#pragma once
#include "attention_backward.cuh"
#include "tensor_cores.cuh"

#ifndef OWN
#define OWN 64
#endif
#ifndef TILE
#define TILE 32
#endif
#ifndef STAGES
#define STAGES 1  // tiles in shared memory, 1 or 2
#endif
#ifndef SIDES
#define SIDES 2  // warps for 16 owned rows, 1 or 2
#endif
#ifndef BLOCKS
#define BLOCKS 1  // that share a multiprocessor
#endif
#ifndef VECTOR
#define VECTOR 4  // elements per global load: 4 needs rows aligned to 16 bytes, 1 takes any
#endif

#define THREADS (2 * SIDES * OWN)       // each of two warps for 16 owned rows has half of a tile, then half of the columns
#define STEPS (HEAD_DIM / 8)            // a product takes 8 columns
#define CHAIN 4                         // steps of one sum of a tensor core
#define PITCH (4 * HEAD_DIM + 16)       // bytes of a row: an odd number of 16-byte chunks lets no eight rows collide
#define WEIGHT_PITCH (4 * TILE + 16)
#define PART (TILE / SIDES)             // of a tile's rows, by one warp
#define PAIRS ((HEAD_DIM + 15) / 16)    // of 8 columns of a sum; the last one may have no second 8
#define KEEP ((PAIRS + SIDES - 1) / SIDES)  // of them, by one warp

struct Operand {
    unsigned hi, lo;
};

// hi is the first 11 bits of x, and lo the other 13, of which the tensor core cuts off two. That and lo lo, which is left
// out, would make products 4.4 * 2^-24 smaller in the mean; so lo comes from 1 + 2^-23 times x. Two instructions in all,
// where rounding by cvt.rna.tf32 takes five.
__device__ __forceinline__ Operand split(unsigned word) {
    const unsigned hi = word & 0xffffe000u;
    float lo;
    asm("{ .reg .f32 less; neg.f32 less, %2; fma.rn.f32 %0, %1, 0f3F800001, less; }"
        : "=f"(lo) : "f"(__uint_as_float(word)), "f"(__uint_as_float(hi)));
    return {hi, __float_as_uint(lo)};
}

// A 16 x 8 left operand.
struct Left {
    unsigned hi[4], lo[4];
    __device__ __forceinline__ void set(int i, unsigned word) {
        const Operand x = split(word);
        hi[i] = x.hi, lo[i] = x.lo;
    }
};

// A sum of products under way.
struct Sums {
    float big[4] = {}, small[4] = {};

    // x + big, which begins anew.
    __device__ __forceinline__ float moved(int i, float x) {
        x = add_gradual(x, big[i]);
        big[i] = 0.0f;
        return x;
    }
    // x + small, where that is a number.
    __device__ __forceinline__ float completed(int i, float x) const {
        float finite;
        asm("min.f32 %0, %1, 0f7F7FFFFF;" : "=f"(finite) : "f"(small[i]));  // of NaN and y it is y
        return add_gradual(x, finite);
    }
};

// sums[i] += left right[i] for products of 16 x 8 results; each right operand is two words of a lane.
template <int Count>
__device__ __forceinline__ void multiply(Sums (&sums)[Count], const Left& left, const Operand (&right)[2][Count],
                                         int used = Count) {
#pragma unroll
    for (int i = 0; i < Count; i++)
        if (i < used) mma(sums[i].small, left.lo, right[0][i].hi, right[1][i].hi, float());
#pragma unroll
    for (int i = 0; i < Count; i++)
        if (i < used) mma(sums[i].big, left.hi, right[0][i].hi, right[1][i].hi, float());
#pragma unroll
    for (int i = 0; i < Count; i++)
        if (i < used) mma(sums[i].small, left.hi, right[0][i].lo, right[1][i].lo, float());
}

struct alignas(16) Shared {
    unsigned char own[2][OWN][PITCH], tile[STAGES][2][TILE][PITCH];
#if SIDES == 2
    unsigned char weights[2][OWN][WEIGHT_PITCH];
#endif
    float offsets[STAGES][2][TILE];
    int slice;  // of the block, for the end: the walk needs the registers
};

// The compiler would keep all that follows from x in registers, which the sums need; what it cannot see through, it
// computes where it stands.
__device__ __forceinline__ int computed_here(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// A warp's place: its 16 owned rows, its half of a tile or of the columns.
__device__ __forceinline__ int warp_row() { return threadIdx.x / (32 * SIDES) * 16; }
__device__ __forceinline__ int side() { return threadIdx.x / 32 % SIDES; }

// Starts copying rows [first, first + Rows) of x; those at or past `limit` become zeros. A thread keeps its chunk of 16
// bytes, of which there may be fewer than threads for it.
template <int Rows>
__device__ __forceinline__ void load_tile(unsigned char (&tile)[Rows][PITCH], const float* x, i64 stride, int first,
                                          int limit) {
    constexpr int CHUNKS = HEAD_DIM / 4;
    constexpr int SLOTS = CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : CHUNKS <= 32 ? 32 : 64, STEP = THREADS / SLOTS;
    static_assert(Rows % STEP == 0, "all threads copy the same number of rows");
    const int row = threadIdx.x / SLOTS, chunk = threadIdx.x % SLOTS;
    if (CHUNKS < SLOTS && chunk >= CHUNKS) return;
    unsigned to = shared_address(&tile[row][16 * chunk]);
    const float* from = x + (first + row) * stride + 4 * chunk;
    const int inside = limit - first - row;
#pragma unroll VECTOR
    for (int i = 0; i < Rows; i += STEP, from += STEP * stride)
#pragma unroll
        for (int j = 0; j < 4; j += VECTOR)
            copy_async<4 * VECTOR>(to + i * PITCH + 4 * j, i < inside ? from + j : x, i < inside);
}

// Starts copying what is subtracted in the rows [first, first + TILE): logarithms and sums, `pitch` apart.
__device__ __forceinline__ void load_offsets(float (&to)[2][TILE], const float* offsets, int pitch, int first) {
    const int which = threadIdx.x / (TILE / 4), at = threadIdx.x % (TILE / 4) * 4;
    if (which < 2) copy_async<16>(shared_address(&to[which][at]), offsets + which * pitch + first + at, true);
}

// s += big products of Count steps of 8 columns, the small ones to sums.
template <int Count>
__device__ __forceinline__ void multiply_steps(float (&s)[PART / 8][4], Sums (&sums)[PART / 16][2], unsigned a_place,
                                               unsigned b_place) {
#pragma unroll
    for (int step = 0; step < Count; step++) {
        unsigned word[4];
        load_matrices<false>(word, a_place + 32 * step);
        Left a;
#pragma unroll
        for (int i = 0; i < 4; i++) a.set(i, word[i]);
#pragma unroll
        for (int j = 0; j < PART / 16; j++) {
            load_matrices<false>(word, b_place + 32 * step + 16 * j * PITCH);  // of two tiles of 8 rows, two each
            const Operand b[2][2] = {{split(word[0]), split(word[2])}, {split(word[1]), split(word[3])}};
            multiply(sums[j], a, b);
        }
    }
#pragma unroll
    for (int i = 0; i < PART / 2; i++) s[i / 4][i % 4] = sums[i / 8][i / 4 % 2].moved(i % 4, s[i / 4][i % 4]);
}

// s = a b^T for 16 owned rows and this warp's part of a tile. [16, HEAD_DIM] x [PART, HEAD_DIM]^T
__device__ __forceinline__ void multiply_rows(float (&s)[PART / 8][4], const unsigned char (&own)[OWN][PITCH],
                                              const unsigned char (&tile)[TILE][PITCH]) {
    const int lane = threadIdx.x % 32;
    unsigned a_place = shared_address(&own[warp_row() + lane % 16][lane / 16 * 16]);
    unsigned b_place = shared_address(&tile[side() * PART + lane % 8 + lane / 16 * 8][lane / 8 % 2 * 16]);
    Sums sums[PART / 16][2];
#pragma unroll
    for (int i = 0; i < PART / 2; i++) s[i / 4][i % 4] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < STEPS / CHAIN; i++, a_place += 32 * CHAIN, b_place += 32 * CHAIN)
        multiply_steps<CHAIN>(s, sums, a_place, b_place);
    if constexpr (STEPS % CHAIN > 0) multiply_steps<STEPS % CHAIN>(s, sums, a_place, b_place);
#pragma unroll
    for (int i = 0; i < PART / 2; i++)
        s[i / 4][i % 4] = sums[i / 8][i / 4 % 2].completed(i % 4, s[i / 4][i % 4]);
}

// The weights of 16 owned rows as left operands, 8 rows of the tile each: first the even ones of these, then the odd ones,
// since a lane has two neighbours of a result. Two warps that share the rows exchange them through shared memory, between
// two barriers.
struct Weights {
    Left left[TILE / 8];
#if SIDES == 1
    __device__ __forceinline__ void keep(Shared&, int, const float (&s)[PART / 8][4]) {
#pragma unroll
        for (int i = 0; i < PART / 2; i++) left[i / 4].set(i % 4 / 2 + i % 2 * 2, __float_as_uint(s[i / 4][i % 4]));
    }
    __device__ __forceinline__ void read(const Shared&, int) {}
#else
    __device__ __forceinline__ void keep(Shared& shared, int which, const float (&s)[PART / 8][4]) {
        const int lane = threadIdx.x % 32, row = warp_row() + lane / 4, column = side() * PART + lane % 4;
#pragma unroll
        for (int i = 0; i < PART / 2; i++)
            *reinterpret_cast<float*>(
                &shared.weights[which][row + i % 4 / 2 * 8][4 * (column + i / 4 * 8 + i % 2 * 4)]) = s[i / 4][i % 4];
    }
    __device__ __forceinline__ void read(const Shared& shared, int which) {
        const int lane = threadIdx.x % 32;
        const unsigned place = shared_address(&shared.weights[which][warp_row() + lane % 16][lane / 16 * 16]);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            unsigned word[4];
            load_matrices<false>(word, place + 32 * n);
#pragma unroll
            for (int i = 0; i < 4; i++) left[n].set(i, word[i]);
        }
    }
#endif
};

// The columns of pair i of this warp, and how many 8 of them there are.
__device__ __forceinline__ int first_column(int i) { return (SIDES * i + side()) * 16; }
__device__ __forceinline__ int eights(int column) { return HEAD_DIM % 16 && column + 8 >= HEAD_DIM ? 1 : 2; }

// sum += weights tile for 16 owned rows and this warp's columns. [16, TILE] x [TILE, HEAD_DIM]
__device__ __forceinline__ void add_columns(float (&sum)[KEEP][2][4], const Weights& weights,
                                            const unsigned char (&tile)[TILE][PITCH]) {
    const int lane = threadIdx.x % 32;
    const unsigned place = shared_address(&tile[lane % 4 * 2][4 * (lane / 4 + side() * 16)]);
#pragma unroll
    for (int i = 0; i < KEEP; i++) {
        const int used = eights(first_column(i));
        if (first_column(i) >= HEAD_DIM) continue;  // the warp with fewer columns
        if (SIDES == 2 || i % 2 == 0) __syncwarp();  // no more loads ahead than registers for them
        Sums sums[2];
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            Operand b[2][2];
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (j % 2 < used)
                    b[j / 2][j % 2] = split(load_word(place + 64 * SIDES * i + (8 * n + j / 2) * PITCH + 32 * (j % 2)));
            multiply(sums, weights.left[n], b, used);
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j / 4 < used)
                sum[i][j / 4][j % 4] = sums[j / 4].moved(j % 4, sums[j / 4].completed(j % 4, sum[i][j / 4][j % 4]));
    }
}

__device__ __forceinline__ void store_sums(float* out, const float (&sum)[KEEP][2][4], float factor, int first,
                                           int limit) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4 * KEEP; i++) {
        const int row = first + warp_row() + lane / 4 + i % 2 * 8, column = first_column(i / 4) + i / 2 % 2 * 8;
        const float(&x)[4] = sum[i / 4][i / 2 % 2];
        if (row < limit && column < HEAD_DIM)
            *reinterpret_cast<float2*>(out + (i64)row * HEAD_DIM + column + lane % 4 * 2) =
                make_float2(x[i % 2 * 2] * factor, x[i % 2 * 2 + 1] * factor);
    }
}

// use(i) for each of `count` tiles once load(i) has put it into shared memory; with two stages load(i + 1) runs beside it.
template <class Load, class Use>
__device__ __forceinline__ void walk(int count, Load load, Use use) {
    if (STAGES == 2 && count > 0) load(0);
    for (int i = 0; i < count; i++) {
        if constexpr (STAGES == 1) {
            __syncthreads();  // all have finished with the last tile
            load(i);
        }
        copy_async_wait<0>();
        __syncthreads();  // with two stages: all have finished with the tile that the next one replaces
        if (STAGES == 2 && i + 1 < count) load(i + 1);
        use(i);
    }
}
