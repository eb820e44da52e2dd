// The gradient of images by strides, with the copy engine as the one that gathers. Pixels that are equal modulo the stride,
// a phase, meet every so manieth tap, and grad_out at neighbouring places: each phase is a product of its own, whose tiles
// are those of matmul_wgmma.cuh. All phases are in one launch, those of the most taps first.
//
//   left [position, (tap, o)], of grad_out, by TMA's im2col mode;   right [(tap, o), c], the weight
#include "matmul_wgmma.cuh"

// Rows or columns. size: of the result. positions: of a phase, the largest one. common: the greatest divisor of stride and
// dilation. lowest: where in grad_out the first position of any phase meets the one of its taps that is furthest back.
struct Axis {
    int size, positions, stride, padding, dilation, taps, common, lowest;
};

// Of an axis. residue: of its pixels. tap, count: the first one that they meet, and how many. first: where in grad_out, from
// `lowest` on, position 0 meets that; others further back.
struct Phase {
    int residue, tap, count, first;

    // The phases in the order of their taps: i is the first tap, or those without any have larger i.
    __device__ __forceinline__ Phase(int i, const Axis& a) {
        const int period = a.stride / a.common, rest = i / period;
        tap = i % period;
        const int meets = tap * a.dilation + rest - a.padding;
        residue = (meets % a.stride + a.stride) % a.stride;
        count = rest == 0 && tap < a.taps ? cdiv(a.taps - tap, period) : 0;
        first = (residue - meets) / a.stride - a.lowest;
    }
};

// The tile of a work, longest works first. A block takes one from the left and one from the right of a round in turn, so
// that the one with the longest of a round has the shortest of the next.
struct PhaseWork {
    Phase h, w;
    Work tile;

    __device__ __forceinline__ PhaseWork(int index, int tiles, const Sizes& sizes, const Axis& rows, const Axis& columns)
        : h(index / tiles / columns.stride, rows), w(index / tiles % columns.stride, columns), tile(index % tiles, sizes) {
        tile.k_end = h.count * w.count * sizes.K;
    }
};

__device__ __forceinline__ int work_of_round(int round) {
    return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

__device__ __forceinline__ void produce(const Ring& ring, Place& place, const PhaseWork& work, const TensorMap& image,
                                        const TensorMap& weight, const Axis& rows, const Axis& columns, int channels) {
    const int m = work.tile.m, n = m / columns.positions / rows.positions;
    const int y = m / columns.positions % rows.positions + rows.lowest, x = m % columns.positions + columns.lowest;
    for (int i = 0; i < work.h.count; i++)
        for (int j = 0; j < work.w.count; j++) {
            const int r = work.h.tap + i * (rows.stride / rows.common), down = work.h.first - i * (rows.dilation / rows.common);
            const int s = work.w.tap + j * (columns.stride / columns.common);
            const int across = work.w.first - j * (columns.dilation / columns.common);
            for (int c = 0; c < channels; c += BLOCK_K) {
                Barrier& full = ring.full[place.stage];
                unsigned char* b = ring.b(place.stage);
                barrier_wait(ring.empty[place.stage], place.phase ^ 1);
                barrier_expect(full, STAGE_BYTES);
                asm volatile(
                    "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
                    "[%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(ring.a(place.stage))),
                    "l"(&image), "r"(shared_address(&full)), "r"(c), "r"(x), "r"(y), "r"(n), "h"((short)across),
                    "h"((short)down)
                    : "memory");
#pragma unroll
                for (int k = 0; k < cdiv(BLOCK_N, 64); k++)
                    tma_load(b + k * BOX_BYTES, weight, full, work.tile.n + 64 * k, s, r, c);
                place.advance();
            }
        }
}

// 16 rows of sums to their pixels, by way of the warp's strip of shared memory as in Strip.
__device__ __forceinline__ void store_pixels(Output* strip, const float (*sum)[4], Output* out, const PhaseWork& work, int row,
                                             int column, const Sizes& sizes, const Axis& rows, const Axis& columns) {
    constexpr int Pitch = Strip<STRIP_N>::Pitch;
    const int lane = threadIdx.x % 32;
    const bool met = work.tile.k_end;  // else the sums are those of the work before
    Output* mine = strip + lane / 4 * Pitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < STRIP_N / 8; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float pair[2] = {met ? sum[j][2 * half] : 0.0f, met ? sum[j][2 * half + 1] : 0.0f};
            store(mine + 8 * j + 8 * half * Pitch, from_floats<Output>(pair));
        }
    __syncwarp();
    for (int i = lane * C_VECTOR; i < 16 * STRIP_N; i += 32 * C_VECTOR) {
        const int m = row + i / STRIP_N, channel = column + i % STRIP_N;
        const int n = m / columns.positions / rows.positions;
        const int y = m / columns.positions % rows.positions * rows.stride + work.h.residue;
        const int x = m % columns.positions * columns.stride + work.w.residue;
        if (m < sizes.M && channel < sizes.N && y < rows.size && x < columns.size)
            store(out + (((i64)n * rows.size + y) * columns.size + x) * sizes.N + channel,
                  load<C_VECTOR>(strip + i / STRIP_N * Pitch + i % STRIP_N));
    }
    __syncwarp();
}

// out [images, rows, columns, N]. M: positions of a phase. channels: of grad_out, rounded up to 64.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_backward_input_strided(const __grid_constant__ TensorMap image, const __grid_constant__ TensorMap weight,
                                  Output* __restrict__ out, int M, int N, int channels, int tiles, int works, int size_h,
                                  int positions_h, int stride_h, int padding_h, int dilation_h, int taps_h, int common_h,
                                  int lowest_h, int size_w, int positions_w, int stride_w, int padding_w, int dilation_w,
                                  int taps_w, int common_w, int lowest_w) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    const Sizes sizes = {M, N, channels, channels, 1};
    const Axis rows = {size_h, positions_h, stride_h, padding_h, dilation_h, taps_h, common_h, lowest_h};
    const Axis columns = {size_w, positions_w, stride_w, padding_w, dilation_w, taps_w, common_w, lowest_w};
    Place place;
    if (threadIdx.x < 128) {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int round = 0; round * gridDim.x < works; round++) {
                const int index = work_of_round(round);
                if (index < works)
                    produce(ring, place, PhaseWork(index, tiles, sizes, rows, columns), image, weight, rows, columns, channels);
            }
    } else {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int warp = threadIdx.x / 32 - 4;
        Output* strip = reinterpret_cast<Output*>(ring.stages + STAGES * STAGE_BYTES + warp * Strip<STRIP_N>::Bytes);
        Sums sum = {};
        for (int round = 0; round * gridDim.x < works; round++) {
            const int index = work_of_round(round);
            if (index >= works) break;
            const PhaseWork work(index, tiles, sizes, rows, columns);
            if (work.tile.k_end) multiply(sum, ring, place, work.tile);
#pragma unroll
            for (int i = 0; i < HEIGHT; i++)
#pragma unroll
                for (int n = 0; n < BLOCK_N; n += STRIP_N)
                    store_pixels(strip, sum[i] + n / 8, out, work, work.tile.m + (warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16,
                                 work.tile.n + n, sizes, rows, columns);
        }
    }
}
