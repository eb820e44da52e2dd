// The gradient of images by strides, with the copy engine as the one that gathers. Pixels that are equal modulo the stride,
// a phase, meet every so manieth tap, and grad_out at neighbouring places: each phase is a product of its own, whose tiles
// are those of matmul_wgmma.cuh. All phases are in one launch, those of the most taps first.
//
//   left [position, (tap, o)], of grad_out, by TMA's im2col mode;   right [(tap, o), c], the weight
#include "convolution_phases.cuh"

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
