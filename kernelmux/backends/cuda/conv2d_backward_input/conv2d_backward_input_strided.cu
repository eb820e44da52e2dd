// The gradient of images by strides, with the copy engine as the one that gathers. Pixels that are equal modulo the stride,
// a phase, meet every so manieth tap, and grad_out at neighbouring places: each phase is a product of its own, whose tiles
// are those of matmul_wgmma.cuh. All phases are in one launch, those of the most taps first.
//
//   left [position, (tap, o)], of grad_out, by TMA's im2col mode;   right [(tap, o), c], the weight
//
// Windows are known when the kernel is compiled: what they are divided by took longer than the products of a short phase.
#include "convolution_copies.cuh"

#ifndef STRIDE_H
#define STRIDE_H 2
#define PADDING_H 1
#define DILATION_H 1
#define TAPS_H 3
#define COMMON_H 1
#define LOWEST_H 0
#define STRIDE_W 2
#define PADDING_W 1
#define DILATION_W 1
#define TAPS_W 3
#define COMMON_W 1
#define LOWEST_W 0
#endif

// Of the result along an axis. positions: of a phase, the largest one. Lowest: where in grad_out the first position of any
// phase meets the one of its taps that is furthest back. Common: the greatest divisor of stride and dilation.
template <int Stride, int Padding, int Dilation, int Taps, int Common, int Lowest>
struct Axis {
    static constexpr int Phases = Stride, First = Lowest, Apart = Stride / Common, Back = Dilation / Common;
    int size, positions;

    // residue: of a phase's pixels. tap, count: the first tap that they meet, and how many, each Apart taps and Back places
    // from the one before. place: where in grad_out, from Lowest on, position 0 meets the first.
    struct Phase {
        int residue, tap, count, place;

        // In the order of their taps: i is the first tap; those without any come last.
        __device__ __forceinline__ explicit Phase(int i) : tap(i % Apart) {
            const int meets = tap * Dilation + i / Apart - Padding;
            residue = (meets % Stride + Stride) % Stride;
            count = i < Apart && tap < Taps ? cdiv(Taps - tap, Apart) : 0;
            place = (residue - meets) / Stride - Lowest;
        }
    };
};

using Rows = Axis<STRIDE_H, PADDING_H, DILATION_H, TAPS_H, COMMON_H, LOWEST_H>;
using Columns = Axis<STRIDE_W, PADDING_W, DILATION_W, TAPS_W, COMMON_W, LOWEST_W>;

// The tile of a work, longest works first.
struct PhaseWork {
    Rows::Phase h;
    Columns::Phase w;
    Work tile;

    __device__ __forceinline__ PhaseWork(int index, int tiles, const Sizes& sizes)
        : h(index / tiles / Columns::Phases), w(index / tiles % Columns::Phases), tile(index % tiles, sizes) {
        tile.k_end = h.count * w.count * sizes.K;
    }
};

// A block takes one from the left and one from the right of a round in turn, so that the one with the longest work of a
// round has the shortest of the next.
__device__ __forceinline__ int work_of_round(int round) {
    return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

__device__ __forceinline__ void produce(const Ring& ring, Place& place, const PhaseWork& work, const TensorMap& image,
                                        const TensorMap& weight, const Rows& rows, const Columns& columns, int channels) {
    const int line = work.tile.m / columns.positions, x = work.tile.m % columns.positions + Columns::First;
    const int n = line / rows.positions, y = line % rows.positions + Rows::First;
    for (int i = 0; i < work.h.count; i++)
        for (int j = 0; j < work.w.count; j++)
            for (int c = 0; c < channels; c += BLOCK_K) {
                Barrier& full = ring.full[place.stage];
                barrier_wait(ring.empty[place.stage], place.phase ^ 1);
                barrier_expect(full, STAGE_BYTES);
                load_pixels(ring.a(place.stage), image, full, n, y, x, c, work.h.place - i * Rows::Back,
                            work.w.place - j * Columns::Back);
                load_weight(ring.b(place.stage), weight, full, work.tile.n, c, work.h.tap + i * Rows::Apart,
                            work.w.tap + j * Columns::Apart);
                place.advance();
            }
}

// Of a position, its pixel of the result, counted over all images; -1 for none.
__device__ __forceinline__ int pixel_of(int m, const PhaseWork& work, const Sizes& sizes, const Rows& rows,
                                        const Columns& columns) {
    const int line = m / columns.positions, x = m % columns.positions * Columns::Phases + work.w.residue;
    const int n = line / rows.positions, y = line % rows.positions * Rows::Phases + work.h.residue;
    return m < sizes.M && y < rows.size && x < columns.size ? (n * rows.size + y) * columns.size + x : -1;
}

// out [images, rows, columns, N]. M: positions of a phase. channels: of grad_out, rounded up to 64.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_backward_input_strided(const __grid_constant__ TensorMap image, const __grid_constant__ TensorMap weight,
                                  Output* __restrict__ out, int M, int N, int channels, int tiles, int works, int size_h,
                                  int positions_h, int size_w, int positions_w) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    const Sizes sizes = {M, N, channels, channels, 1};
    const Rows rows = {size_h, positions_h};
    const Columns columns = {size_w, positions_w};
    Place place;
    if (threadIdx.x < 128) {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int round = 0; round * gridDim.x < works; round++) {
                const int index = work_of_round(round);
                if (index < works)
                    produce(ring, place, PhaseWork(index, tiles, sizes), image, weight, rows, columns, channels);
            }
    } else {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int warp = threadIdx.x / 32 - 4;
        Output* strip = reinterpret_cast<Output*>(ring.stages + STAGES * STAGE_BYTES + warp * Strip<STRIP_N>::Bytes);
        Sums sum = {};
        for (int round = 0; round * gridDim.x < works; round++) {
            const int index = work_of_round(round);
            if (index >= works) break;  // only in the last round
            const PhaseWork work(index, tiles, sizes);
            int pixels[HEIGHT];
#pragma unroll
            for (int i = 0; i < HEIGHT; i++)
                pixels[i] = pixel_of(work.tile.m + (warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16 + threadIdx.x % 16, work,
                                     sizes, rows, columns);
            if (work.tile.k_end) multiply(sum, ring, place, work.tile);
#pragma unroll
            for (int i = 0; i < HEIGHT; i++)
#pragma unroll
                for (int n = 0; n < BLOCK_N; n += STRIP_N)
                    store_pixels(strip, sum[i] + n / 8, out, EPILOGUE(Output), pixels[i], work.tile.k_end,
                                 work.tile.n + n, N);
        }
    }
}
