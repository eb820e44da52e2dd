// conv2d of fp32, and its gradient with respect to images for stride 1, on Hopper's tensor cores of bf16: images and weights
// come as three planes (planes.cu), channels side by side, of which six products are made for every tap and 64 channels.
// TMA's im2col mode finds the pixels of a plane as in conv2d_implicit_gemm_tma.cu: a plane is nothing but further channels.
//
//   CONV2D           left [position, (tap, c)], pixels;      right [o, (tap, c)], lines of K
//   BACKWARD_INPUT   left [position, (tap, o)], of grad_out; right [(tap, o), c], the taps backwards
#include "convolution_windows.cuh"
#include "dependent_launch.cuh"
#include "planes_products.cuh"

#define CONV2D 0
#define BACKWARD_INPUT 1
#ifndef OPERATOR
#define OPERATOR CONV2D
#endif
#ifndef M_CONTIGUOUS  // the result is contiguous images, or parts of them: positions lie side by side, not channels
#define M_CONTIGUOUS 0
#endif

// weight_plane: channels of a plane of the weight.
__device__ __forceinline__ void produce(const Ring& ring, Place& place, const Work& work, const TensorMap& image,
                                        const TensorMap& weight, const Windows& w, int weight_plane) {
    constexpr bool Back = OPERATOR == BACKWARD_INPUT;
    const Position at(work.m, w);
    Step step(work.k_begin, w);
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K, step.advance(w)) {
        const int r = Back ? w.taps_h - 1 - step.r : step.r, s = Back ? w.taps_w - 1 - step.s : step.s;
#pragma unroll
        for (int i = 0; i < 3; i++) {
            Step plane = step;
            plane.c += PLANES_IN_RING[i] * w.channels;
            const int further = PLANES_IN_RING[i] * weight_plane;
            Barrier& full = ring.full[place.stage];
            barrier_wait(ring.empty[place.stage], place.phase ^ 1);
            barrier_expect(full, STAGE_BYTES);
            load_tap(ring.a(place.stage), image, full, at, plane, w);
            load_weight(ring.b(place.stage), weight, full, work.n + (Back ? further : 0), step.c + (Back ? 0 : further), r, s);
            place.advance();
        }
    }
}

// Sums of 16 rows, which are positions, to images [., N, pixels]: eight lanes have neighbours.
__device__ __forceinline__ void store_along_pixels(const float (&sum)[BLOCK_N / 8][4], Output* c,
                                                   const Epilogue<Output>& epilogue, int row, int column, int M, int N,
                                                   int pixels) {
    const int lane = threadIdx.x % 32;
    i64 at[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int m = row + lane / 4 + 8 * half;
        at[half] = m < M ? (i64)(m / pixels) * N * pixels + m % pixels : -1;
    }
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int n = column + 8 * j + lane % 4 * 2 + i;
            if (n >= N) continue;
            const float bias = epilogue.bias_of(n);
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (at[half] >= 0) c[at[half] + (i64)n * pixels] = Epilogue<Output>::biased(sum[j][2 * half + i], bias);
        }
}

// Block i computes the works i, i + gridDim.x, ...; a piece of K has its own [M, N] of c. pixels: of an image of the result.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_bf16x6(const __grid_constant__ TensorMap image, const __grid_constant__ TensorMap weight,
                  Output* __restrict__ c EPILOGUE_PARAMETERS(Output), int M, int N, int K, int k_split, int works, int rows,
                  int columns, int stride_h, int stride_w, int padding_h, int padding_w, int dilation_h, int dilation_w,
                  int taps_h, int taps_w, int channels, int weight_plane, int pixels) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    wait_for_previous();
    let_next_start();
    const Sizes sizes = {M, N, K, k_split, 1};
    Place place;
    if (threadIdx.x < 128) {
        fetches();
        const Windows w = {rows,       columns,    stride_h, stride_w, padding_h, padding_w,
                           dilation_h, dilation_w, taps_h,   taps_w,   channels};
        if (threadIdx.x == 0)
            for (int i = blockIdx.x; i < works; i += gridDim.x)
                produce(ring, place, Work(i, sizes), image, weight, w, weight_plane);
    } else {
        multiplies();
        const int warp = threadIdx.x / 32 - 4;
        Output* strip = reinterpret_cast<Output*>(ring.stages + STAGES * STAGE_BYTES + warp * Strip<STRIP_N>::Bytes);
        for (int i = blockIdx.x; i < works; i += gridDim.x) {
            const Work work(i, sizes);
            Sums total = {};
            multiply_all_planes(total, ring, place, work);
            Output* out = c + (i64)work.slice * M * N;
#pragma unroll
            for (int h = 0; h < HEIGHT; h++) {
                const int row = work.m + (warp / 4 * HEIGHT + h) * 64 + warp % 4 * 16;
                if constexpr (M_CONTIGUOUS) {
                    store_along_pixels(total[h], out, EPILOGUE(Output), row, work.n, M, N, pixels);
                } else {
#pragma unroll
                    for (int n = 0; n < BLOCK_N; n += STRIP_N)
                        Strip<STRIP_N>::store_out(strip, total[h] + n / 8, out, EPILOGUE(Output), row, work.n + n, M, N);
                }
            }
        }
    }
}
