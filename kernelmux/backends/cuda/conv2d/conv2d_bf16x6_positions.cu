// The gradient of the weight of fp32 on Hopper's tensor cores of bf16: grad_out and images come as three planes (planes.cu),
// channels side by side, of which six products are made for every 64 positions, over which all is summed.
//
//   left [position, o], grad_out; right [position, (tap, c)], pixels by TMA's im2col mode
#include "convolution_windows.cuh"
#include "dependent_launch.cuh"
#include "planes_products.cuh"

constexpr int COPIES = BLOCK_N / 64;
static_assert(BLOCK_N % 64 == 0, "a copy of 64 channels is of one tap");

// left_plane: channels of a plane of grad_out.
__device__ __forceinline__ void produce(const Ring& ring, Place& place, const Work& work, const TensorMap& grad_out,
                                        const TensorMap& image, const Windows& w, int left_plane) {
    const int terms = w.taps_h * w.taps_w * w.channels;
    Step steps[COPIES];
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const int term = work.n + 64 * i;  // those behind the last one are not stored
        steps[i] = Step(term < terms ? term : 0, w);
    }
    Position at(work.k_begin, w);
    const Position by(BLOCK_K, w);
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K, at.advance(by, w))
#pragma unroll
        for (int p = 0; p < 3; p++) {
            Barrier& full = ring.full[place.stage];
            barrier_wait(ring.empty[place.stage], place.phase ^ 1);
            barrier_expect(full, STAGE_BYTES);
#pragma unroll
            for (int i = 0; i < BLOCK_M / 64; i++)
                tma_load(ring.a(place.stage) + i * BOX_BYTES, grad_out, full, PLANES_IN_RING[p] * left_plane + work.m + 64 * i, k);
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                Step plane = steps[i];
                plane.c += PLANES_IN_RING[p] * w.channels;
                load_tap(ring.b(place.stage) + i * BOX_BYTES, image, full, at, plane, w);
            }
            place.advance();
        }
}

// Sums of 16 rows, from `row` on, to c [M, taps, each]: of a tap there are `each` channels, of which w.channels are computed.
__device__ __forceinline__ void store_terms(const float (&sum)[BLOCK_N / 8][4], Output* c, int row, int column, int M, int each,
                                            const Windows& w) {
    const int lane = threadIdx.x % 32, taps = w.taps_h * w.taps_w;
#pragma unroll
    for (int copy = 0; copy < COPIES; copy++) {
        const int term = column + 64 * copy, tap = term / w.channels, first = term % w.channels + lane % 4 * 2;
        if (tap >= taps) break;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int m = row + lane / 4 + 8 * half;
            if (m >= M) continue;
            Output* to = c + ((i64)m * taps + tap) * each;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (first + 8 * j + i < each) to[first + 8 * j + i] = sum[8 * copy + j][2 * half + i];
        }
    }
}

// Block i computes the works i, i + gridDim.x, ...; a piece of K has its own [M, taps, each] of c.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_bf16x6_positions(const __grid_constant__ TensorMap grad_out, const __grid_constant__ TensorMap image,
                            Output* __restrict__ c, int M, int N, int K, int k_split, int works, int rows, int columns,
                            int stride_h, int stride_w, int padding_h, int padding_w, int dilation_h, int dilation_w,
                            int taps_h, int taps_w, int channels, int left_plane, int each) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    wait_for_previous();
    let_next_start();
    const Sizes sizes = {M, N, K, k_split, 1};
    const Windows w = {rows,       columns,    stride_h, stride_w, padding_h, padding_w,
                       dilation_h, dilation_w, taps_h,   taps_w,   channels};
    Place place;
    if (threadIdx.x < 128) {
        fetches();
        if (threadIdx.x == 0)
            for (int i = blockIdx.x; i < works; i += gridDim.x)
                produce(ring, place, Work(i, sizes), grad_out, image, w, left_plane);
    } else {
        multiplies();
        const int warp = threadIdx.x / 32 - 4;
        for (int i = blockIdx.x; i < works; i += gridDim.x) {
            const Work work(i, sizes);
            Sums total = {};
            multiply_all_planes(total, ring, place, work);
            Output* out = c + (i64)work.slice * M * taps_h * taps_w * each;
#pragma unroll
            for (int h = 0; h < HEIGHT; h++)
                store_terms(total[h], out, work.m + (warp / 4 * HEIGHT + h) * 64 + warp % 4 * 16, work.n, M, each, w);
        }
    }
}
