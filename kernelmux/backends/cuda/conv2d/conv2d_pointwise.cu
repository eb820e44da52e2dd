// conv2d with kernels of single elements and its gradients, of contiguous images [N, channels, pixels] as they lie: the copy
// engine reads rows of pixels, whose number is a multiple of 8. Each image has `padded` pixels here, whole tiles or steps;
// those that do not exist are zero.
//
//   CONV2D           left [o, c], the weight;         right [c, pixel], images; columns are pixels (TURNED)
//   BACKWARD_WEIGHT  left [o, pixel], grad_out;       right [c, pixel], images; sums over the pixels of all images
//
// The gradient of the images is the first with a weight [c, o], whose lines run along rows.
#include "convolution_ends.cuh"

#define CONV2D 0
#define BACKWARD_WEIGHT 2
#ifndef OPERATOR
#define OPERATOR BACKWARD_WEIGHT
#endif

__device__ __forceinline__ void produce(const Ring& ring, Place& place, const Work& work, const TensorMap& left,
                                        const TensorMap& right, int padded) {
    const int image = work.n / padded, column = work.n - image * padded;
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        Barrier& full = ring.full[place.stage];
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        barrier_expect(full, STAGE_BYTES);
        unsigned char *a = ring.a(place.stage), *b = ring.b(place.stage);
        if constexpr (OPERATOR == BACKWARD_WEIGHT) {
            const int of = k / padded, pixel = k - of * padded;
            tma_load(a, left, full, pixel, work.m, 0, of);
            tma_load(b, right, full, pixel, work.n, 0, of);
        } else {
#pragma unroll
            for (int i = 0; i < (A_K_MAJOR ? 1 : BLOCK_M / 64); i++)
                tma_load(a + i * BOX_BYTES, left, full, A_K_MAJOR ? k : work.m + 64 * i, A_K_MAJOR ? work.m : k);
#pragma unroll
            for (int i = 0; i < cdiv(BLOCK_N, 64); i++)
                tma_load(b + i * BOX_BYTES, right, full, column + 64 * i, k, 0, image);
        }
        place.advance();
    }
}

// As conv2d_implicit_gemm_tma: block i computes the works i, i + gridDim.x, ..., or a share of one work.
extern "C" __global__ void CLUSTER_OF_SHARES __launch_bounds__(THREADS, 1)
    conv2d_pointwise(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
                     Output* __restrict__ c EPILOGUE_PARAMETERS(Output), int M, int N, int K, int k_split, int works,
                     int pixels, int padded) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    const Sizes sizes = {M, N, K, k_split, 1};
    const int rank = blockIdx.x % SHARES;
    const int begin = SHARES > 1 ? rank * works + blockIdx.x / SHARES : blockIdx.x, end = SHARES > 1 ? begin + 1 : works;
    if (threadIdx.x < 128) {
        fetches();
        Place place;
        if (threadIdx.x == 0)
            for (int i = begin; i < end; i += gridDim.x) produce(ring, place, Work(i, sizes), left, right, padded);
        if constexpr (SHARES > 1) share_sync();
    } else {
        multiplies();
        if constexpr (SHARES > 1) {
            const Work work(begin, sizes);
            Sums sum;  // the first product sets it
            Place place;
            multiply(sum, ring, place, work);
            add_shares(reinterpret_cast<float*>(shared), sum, c, EPILOGUE(Output), rank, work, M, N, pixels, padded);
        } else if constexpr (TURNED) {
            consume_turned(ring, c, EPILOGUE(Output), sizes, works, pixels, padded);
        } else {
            consume(ring, c, EPILOGUE(Output), sizes, works);
        }
    }
    if constexpr (SHARES > 1) share_sync();  // no block leaves while another reads its sums
}
