// conv2d and its gradients with the copy engine as the one that gathers: a single thread names the first position of a
// tile, a tap and 64 channels, and TMA's im2col mode finds the pixels, zeros for the padding. What is left is the
// product of matmul_wgmma.cuh, with nothing to compute about addresses.
//
//   CONV2D           left [position, (tap, c)], pixels;     right [o, (tap, c)], lines of K
//   BACKWARD_INPUT   left [position, (tap, o)], of grad_out; right [(tap, o), c], the taps backwards; stride 1
//   BACKWARD_WEIGHT  left [position, o], grad_out;          right [position, (tap, c)], pixels; sums over positions
//
// With TURNED the first two have the weight as the left factor and pixels as the right one, so that rows are channels of the
// result: columns are its positions, which lie side by side in contiguous images. With SHARES above 1 the blocks of a cluster have one tile and a share of K each, for products of few tiles.
#include "convolution_ends.cuh"
#include "convolution_windows.cuh"
#include "dependent_launch.cuh"

#define CONV2D 0
#define BACKWARD_INPUT 1
#define BACKWARD_WEIGHT 2
#ifndef OPERATOR
#define OPERATOR CONV2D
#endif

// Of conv2d and of the gradient of its images: K is taps and channels, one operand is pixels and the other a weight.
__device__ __forceinline__ void produce_terms(const Ring& ring, Place& place, const Work& work, const TensorMap& image,
                                              const TensorMap& weight, const Windows& w, int first) {
    const Position at(first + (TURNED ? work.n : work.m), w);
    Step step(work.k_begin, w);
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K, step.advance(w)) {
        Barrier& full = ring.full[place.stage];
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        barrier_expect(full, STAGE_BYTES);
        unsigned char *a = ring.a(place.stage), *b = ring.b(place.stage);
        load_tap(TURNED ? b : a, image, full, at, step, w);
        const bool back = OPERATOR == BACKWARD_INPUT;
        const int r = back ? w.taps_h - 1 - step.r : step.r, s = back ? w.taps_w - 1 - step.s : step.s;
        if constexpr (TURNED) load_weight<A_K_MAJOR, BLOCK_M>(a, weight, full, work.m, step.c, r, s);
        else load_weight(b, weight, full, work.n, step.c, r, s);
        place.advance();
    }
}

// Of the gradient of the weight: K is positions, both operands have it as the outer index. Nothing is divided in the loop:
// with a tile of 256 x 128 that took 237 instructions for each step, more time than the products of the step.
__device__ __forceinline__ void produce_positions(const Ring& ring, Place& place, const Work& work, const TensorMap& grad_out,
                                                  const TensorMap& image, const Windows& w) {
    constexpr int Copies = BLOCK_N / 64;
    static_assert(OPERATOR != BACKWARD_WEIGHT || BLOCK_N % 64 == 0, "a copy of 64 channels is of one tap");
    const int terms = w.taps_h * w.taps_w * w.channels;
    Step steps[Copies];
#pragma unroll
    for (int i = 0; i < Copies; i++) {
        const int term = work.n + 64 * i;  // those behind the last one are not stored
        steps[i] = Step(term < terms ? term : 0, w);
    }
    Position at(work.k_begin, w);
    const Position by(BLOCK_K, w);
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K, at.advance(by, w)) {
        Barrier& full = ring.full[place.stage];
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        barrier_expect(full, STAGE_BYTES);
#pragma unroll
        for (int i = 0; i < BLOCK_M / 64; i++)
            tma_load(ring.a(place.stage) + i * BOX_BYTES, grad_out, full, work.m + 64 * i, k);
#pragma unroll
        for (int i = 0; i < Copies; i++) load_tap(ring.b(place.stage) + i * BOX_BYTES, image, full, at, steps[i], w);
        place.advance();
    }
}

#ifndef LEAVES_REST  // the launch that follows computes the rows behind these, and may begin when blocks of this one end
#define LEAVES_REST 0
#endif
#ifndef IS_REST  // this is the launch that follows
#define IS_REST 0
#endif
#ifndef AFTER_COPY  // the launch before has made a copy that this one reads; this one may begin when its blocks end
#define AFTER_COPY 0
#endif

// Block i computes the works i, i + gridDim.x, ...; a piece of K has its own [M, N] of c. With shares block SHARES * i + rank
// has share `rank` of tile i, of `works` tiles in all.
extern "C" __global__ void CLUSTER_OF_SHARES __launch_bounds__(THREADS, 1)
    conv2d_implicit_gemm_tma(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
                             Output* __restrict__ c EPILOGUE_PARAMETERS(Output), int M, int N, int K, int k_split, int works,
                             int rows, int columns, int stride_h, int stride_w, int padding_h, int padding_w, int dilation_h,
                             int dilation_w, int taps_h, int taps_w, int channels, int first) {
    extern __shared__ __align__(1024) unsigned char shared[];
    if constexpr (LEAVES_REST) let_next_start();
    const Ring ring(shared);
    const Sizes sizes = {M, N, K, k_split, 1};
    const int rank = blockIdx.x % SHARES;
    const int begin = SHARES > 1 ? rank * works + blockIdx.x / SHARES : blockIdx.x, end = SHARES > 1 ? begin + 1 : works;
    if (threadIdx.x < 128) {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        const Windows w = {rows,       columns,    stride_h, stride_w, padding_h, padding_w,
                           dilation_h, dilation_w, taps_h,   taps_w,   channels};
        Place place;
        if constexpr (AFTER_COPY) wait_for_previous();
        if (threadIdx.x == 0)
            for (int i = begin; i < end; i += gridDim.x) {
                const Work work(i, sizes);
                if constexpr (OPERATOR == BACKWARD_WEIGHT) produce_positions(ring, place, work, left, right, w);
                else produce_terms(ring, place, work, left, right, w, first);
            }
        if constexpr (SHARES > 1) share_sync();
    } else {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if constexpr (SHARES > 1) {
            const Work work(begin, sizes);
            Sums sum;  // the first product sets it
            Place place;
            multiply(sum, ring, place, work);
            add_shares(reinterpret_cast<float*>(shared), sum, c, EPILOGUE(Output), rank, work, M, N, rows * columns, rows * columns);
        } else if constexpr (TURNED) {
            consume_turned(ring, c, EPILOGUE(Output), sizes, works, rows * columns, rows * columns);
        } else {
            consume(ring, c, EPILOGUE(Output), sizes, works);
        }
    }
    if constexpr (SHARES > 1) share_sync();  // no block leaves while another reads its sums
    if constexpr (IS_REST) wait_for_previous();
}
