// The gradient of images by strides, of fp32 on Hopper's tensor cores of bf16: grad_out and the weight come as three planes
// (planes.cu), channels side by side, of which six products are made for every tap that a phase meets and 64 filters.
//
//   left [position, (tap, o)], of grad_out, by TMA's im2col mode;   right [(tap, o), c], the weight
#include "convolution_phases.cuh"
#include "dependent_launch.cuh"
#include "planes_products.cuh"

#ifndef M_CONTIGUOUS  // the result is contiguous images
#define M_CONTIGUOUS 0
#endif

// channels: of a plane of grad_out. weight_plane: of one of the weight.
__device__ __forceinline__ void produce(const Ring& ring, Place& place, const PhaseWork& work, const TensorMap& image,
                                        const TensorMap& weight, const Rows& rows, const Columns& columns, int channels,
                                        int weight_plane) {
    const int line = work.tile.m / columns.positions, x = work.tile.m % columns.positions + Columns::First;
    const int n = line / rows.positions, y = line % rows.positions + Rows::First;
    for (int i = 0; i < work.h.count; i++)
        for (int j = 0; j < work.w.count; j++)
            for (int c = 0; c < channels; c += BLOCK_K)
#pragma unroll
                for (int p = 0; p < 3; p++) {
                    Barrier& full = ring.full[place.stage];
                    barrier_wait(ring.empty[place.stage], place.phase ^ 1);
                    barrier_expect(full, STAGE_BYTES);
                    load_pixels(ring.a(place.stage), image, full, n, y, x, c + PLANES_IN_RING[p] * channels,
                                work.h.place - i * Rows::Back, work.w.place - j * Columns::Back);
                    load_weight(ring.b(place.stage), weight, full, work.tile.n + PLANES_IN_RING[p] * weight_plane, c,
                                work.h.tap + i * Rows::Apart, work.w.tap + j * Columns::Apart);
                    place.advance();
                }
}

// Sums of two rows of a lane to their pixels of images [., N, each]; -1 is none.
__device__ __forceinline__ void store_apart(const float (&sum)[BLOCK_N / 8][4], Output* out, const int (&pixels)[2],
                                            int column, int N, int each) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (pixels[half] < 0) continue;
        Output* to = out + (i64)(pixels[half] / each) * N * each + pixels[half] % each;
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int n = column + 8 * j + threadIdx.x % 4 * 2 + i;
                if (n < N) to[(i64)n * each] = sum[j][2 * half + i];
            }
    }
}

// out: images of N channels. M: positions of a phase.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_backward_input_bf16x6(const __grid_constant__ TensorMap image, const __grid_constant__ TensorMap weight,
                                 Output* __restrict__ out, int M, int N, int channels, int weight_plane, int tiles,
                                 int works, int size_h, int positions_h, int size_w, int positions_w) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    wait_for_previous();
    let_next_start();
    const Sizes sizes = {M, N, channels, channels, 1};
    const Rows rows = {size_h, positions_h};
    const Columns columns = {size_w, positions_w};
    Place place;
    if (threadIdx.x < 128) {
        fetches();
        if (threadIdx.x == 0)
            for (int round = 0; round * gridDim.x < works; round++) {
                const int index = work_of_round(round);
                if (index < works)
                    produce(ring, place, PhaseWork(index, tiles, sizes), image, weight, rows, columns, channels, weight_plane);
            }
    } else {
        multiplies();
        const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
        Output* strip = reinterpret_cast<Output*>(ring.stages + STAGES * STAGE_BYTES + warp * Strip<STRIP_N>::Bytes);
        for (int round = 0; round * gridDim.x < works; round++) {
            const int index = work_of_round(round);
            if (index >= works) break;  // only in the last round
            const PhaseWork work(index, tiles, sizes);
            Sums total = {};
            multiply_all_planes(total, ring, place, work.tile);
#pragma unroll
            for (int i = 0; i < HEIGHT; i++) {
                const int row = work.tile.m + (warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16;
                if constexpr (M_CONTIGUOUS) {
                    const int pixels[2] = {pixel_of(row + lane / 4, work, sizes, rows, columns),
                                           pixel_of(row + lane / 4 + 8, work, sizes, rows, columns)};
                    store_apart(total[i], out, pixels, work.tile.n, N, size_h * size_w);
                } else {
                    const int pixel = pixel_of(row + lane % 16, work, sizes, rows, columns);
#pragma unroll
                    for (int n = 0; n < BLOCK_N; n += STRIP_N)
                        store_pixels(strip, total[i] + n / 8, out, EPILOGUE(Output), pixel, true, work.tile.n + n, N);
                }
            }
        }
    }
}
