// conv2d and the gradient of its images for stride 1, with pixels that stay in shared memory for all taps of a row.
//
// conv2d_implicit_gemm_tma.cu copies the pixels of a tile once for each tap: on an H200 some 5 TB/s of them, or half of that
// where pixels begin within lines of L2. With tiles of few columns that takes longer than the products. Here a tile is of
// positions that follow one another in rows with the padding between them, so that pixels at the next tap of a row are
// those a line further on in shared memory: wgmma reads them from there. Its swizzle goes by the address itself, so a
// matrix may begin with any line. Of each W + S - 1 positions S - 1 are in the padding, and their products in vain.
//
//   CONV2D           left [position, (tap, c)], pixels;       right [o, (tap, c)], lines of K
//   BACKWARD_INPUT   left [position, (tap, o)], of grad_out;  right [(tap, o), c], the taps backwards
#include "convolution_copies.cuh"

#define CONV2D 0
#define BACKWARD_INPUT 1
#ifndef OPERATOR
#define OPERATOR CONV2D
#endif
#ifndef TAPS_W
#define TAPS_W 3
#endif
#ifndef DILATION_W
#define DILATION_W 1
#endif
#ifndef PIXEL_STAGES
#define PIXEL_STAGES 3
#endif

constexpr int HALO = cdiv((TAPS_W - 1) * DILATION_W, 8) * 8;  // lines behind those of a tile
constexpr int PIXEL_BYTES = (BLOCK_M + HALO) * 128;
constexpr int ARRIVALS = 4 * CONSUMERS;

// Two rings: pixels, a stage for a row of taps and 64 channels, and weights, a stage for a tap of those.
struct Rings {
    unsigned char *pixels, *weights, *strips;
    Barrier *pixels_full, *pixels_empty, *weights_full, *weights_empty;

    __device__ __forceinline__ explicit Rings(unsigned char* shared)
        : pixels(shared), weights(pixels + PIXEL_STAGES * PIXEL_BYTES), strips(weights + STAGES * B_BYTES) {
        pixels_full = reinterpret_cast<Barrier*>(strips + STRIP_BYTES);
        pixels_empty = pixels_full + PIXEL_STAGES;
        weights_full = pixels_empty + PIXEL_STAGES;
        weights_empty = weights_full + STAGES;
        if (threadIdx.x == 0) {
            for (int i = 0; i < PIXEL_STAGES; i++) barrier_init(pixels_full[i], 1), barrier_init(pixels_empty[i], ARRIVALS);
            for (int i = 0; i < STAGES; i++) barrier_init(weights_full[i], 1), barrier_init(weights_empty[i], ARRIVALS);
            barrier_init_fence();
        }
        __syncthreads();
    }
};

using PixelPlace = RingPlace<PIXEL_STAGES>;

// rows, wide: positions of an image, those in the padding too. columns: without these. left, top: of the first tap from the
// first position. channels: of the image, rounded up to 64.
struct Walk {
    int rows, wide, columns, top, left, dilation_h, taps_h, channels;
};

__device__ __forceinline__ void produce(const Rings& rings, PixelPlace& pixel, Place& place, const Work& work,
                                        const TensorMap& image, const TensorMap& weight, const Walk& w) {
    const int line = work.m / w.wide, n = line / w.rows, y = line % w.rows - w.top, x = work.m % w.wide - w.left;
    for (int r = 0; r < w.taps_h; r++)
        for (int c = 0; c < w.channels; c += BLOCK_K) {
            Barrier& full = rings.pixels_full[pixel.stage];
            barrier_wait(rings.pixels_empty[pixel.stage], pixel.phase ^ 1);
            barrier_expect(full, PIXEL_BYTES);
            load_pixels(rings.pixels + pixel.stage * PIXEL_BYTES, image, full, n, y, x, c, r * w.dilation_h, 0);
            pixel.advance();
            for (int s = 0; s < TAPS_W; s++) {
                barrier_wait(rings.weights_empty[place.stage], place.phase ^ 1);
                barrier_expect(rings.weights_full[place.stage], B_BYTES);
                load_weight(rings.weights + place.stage * B_BYTES, weight, rings.weights_full[place.stage], work.n, c,
                            OPERATOR == CONV2D ? r : w.taps_h - 1 - r, OPERATOR == CONV2D ? s : TAPS_W - 1 - s);
                place.advance();
            }
        }
}

// As `multiply`, of all taps; what a product has read is given back one product late.
__device__ __forceinline__ void multiply_rows(Sums& sum, const Rings& rings, PixelPlace& pixel, Place& place, int rows,
                                              int channels) {
    const bool mine = threadIdx.x % 32 == 0;
    int weights = -1, pixels = -1;
    bool add = false;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < channels; c += BLOCK_K) {
            const unsigned char* a =
                rings.pixels + pixel.stage * PIXEL_BYTES + (threadIdx.x / 128 - 1) * HEIGHT * BOX_BYTES;
            barrier_wait(rings.pixels_full[pixel.stage], pixel.phase);
#pragma unroll 1
            for (int s = 0; s < TAPS_W; s++) {
                const unsigned char* b = rings.weights + place.stage * B_BYTES;
                barrier_wait(rings.weights_full[place.stage], place.phase);
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < 128 / 32; step++) {
                    if (step == TAP_PRODUCTS && (c + BLOCK_K) % TAP_K == 0) break;
#pragma unroll
                    for (int i = 0; i < HEIGHT; i++)
                        wgmma<true, B_K_MAJOR>(sum[i], describe<true>(a + i * BOX_BYTES + s * DILATION_W * 128, step),
                                               describe<B_K_MAJOR>(b, step), add || step > 0, Element());
                }
                add = true;
                wgmma_commit();
                wgmma_wait<1>();
                if (weights >= 0) barrier_arrive_if(mine, rings.weights_empty[weights]);
                if (s == 0 && pixels >= 0) barrier_arrive_if(mine, rings.pixels_empty[pixels]);
                weights = place.stage;
                place.advance();
            }
            pixels = pixel.stage;
            pixel.advance();
        }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < HEIGHT; i++) pin(sum[i]);
    barrier_arrive_if(mine, rings.weights_empty[weights]);
    barrier_arrive_if(mine, rings.pixels_empty[pixels]);
}

// out [images, rows, columns, N]. M: positions, those in the padding too.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_implicit_gemm_shared(const __grid_constant__ TensorMap image, const __grid_constant__ TensorMap weight,
                                Output* __restrict__ out EPILOGUE_PARAMETERS(Output), int M, int N, int works, int rows,
                                int wide, int columns, int top, int left, int dilation_h, int taps_h, int channels) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Rings rings(shared);
    const Sizes sizes = {M, N, channels, channels, 1};
    const Walk w = {rows, wide, columns, top, left, dilation_h, taps_h, channels};
    PixelPlace pixel;
    Place place;
    if (threadIdx.x < 128) {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int i = blockIdx.x; i < works; i += gridDim.x)
                produce(rings, pixel, place, Work(i, sizes), image, weight, w);
    } else {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int warp = threadIdx.x / 32 - 4;
        Output* strip = reinterpret_cast<Output*>(rings.strips + warp * Strip<STRIP_N>::Bytes);
        Sums sum = {};
        for (int index = blockIdx.x; index < works; index += gridDim.x) {
            const Work work(index, sizes);
            int pixels[HEIGHT];
#pragma unroll
            for (int i = 0; i < HEIGHT; i++) {
                const int m = work.m + (warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16 + threadIdx.x % 16, x = m % wide;
                pixels[i] = m < M && x < columns ? m / wide * columns + x : -1;
            }
            multiply_rows(sum, rings, pixel, place, taps_h, channels);
#pragma unroll
            for (int i = 0; i < HEIGHT; i++)
#pragma unroll
                for (int n = 0; n < BLOCK_N; n += STRIP_N)
                    store_pixels(strip, sum[i] + n / 8, out, EPILOGUE(Output), pixels[i], true, work.n + n, N);
        }
    }
}
