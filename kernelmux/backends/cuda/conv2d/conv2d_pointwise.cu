// conv2d with kernels of single elements and its gradients, of contiguous images [N, channels, pixels] as they lie: the copy
// engine reads rows of pixels, whose number is a multiple of 8. Each image has `padded` pixels here, whole tiles or steps;
// those that do not exist are zero.
//
//   CONV2D           left [o, c], the weight;         right [c, pixel], images; columns are pixels (TURNED)
//   BACKWARD_WEIGHT  left [o, pixel], grad_out;       right [c, pixel], images; sums over the pixels of all images
//
// The gradient of the images is the first with a weight [c, o], whose lines run along rows.
//
// Where rows of pixels begin at odd multiples of 16 bytes, five sectors of L2 are read for four, and L2 is what a gradient of
// the weight waits for: blocks of a cluster, ACROSS of them side by side, fetch rows of grad_out once, by multicast.
#include "convolution_ends.cuh"

#define CONV2D 0
#define BACKWARD_WEIGHT 2
#ifndef OPERATOR
#define OPERATOR BACKWARD_WEIGHT
#endif

static_assert(PEERS == ACROSS, "no block lies below another");
static_assert(PEERS == 1 || (OPERATOR == BACKWARD_WEIGHT && SHARES == 1), "a cluster shares operands or K");

// A box for all blocks of the cluster, at the same place of their shared memory; the barrier of each counts the bytes.
__device__ __forceinline__ void load_for_all(void* to, const TensorMap& map, Barrier& full, int pixel, int channel, int image) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
        "l"(&map), "r"(shared_address(&full)), "r"(pixel), "r"(channel), "r"(0), "r"(image), "h"((short)((1 << ACROSS) - 1))
        : "memory");
}

// The rows of pixels that this block fetches: those of images, and of grad_out all or a part for the blocks beside it too.
__device__ __forceinline__ void load_rows(unsigned char* a, unsigned char* b, const TensorMap& left, const TensorMap& right,
                                          Barrier& full, const Work& work, int pixel, int image) {
    constexpr int Rows = BLOCK_M / ACROSS;
    static_assert(Rows % 8 == 0, "a swizzle repeats every 8 rows");
    const int m = Seat().x * Rows;
    if constexpr (ACROSS == 1) tma_load(a, left, full, pixel, work.m, 0, image);
    else load_for_all(a + m * 128, left, full, pixel, work.m + m, image);
    tma_load(b, right, full, pixel, work.n, 0, image);
}

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
            load_rows(a, b, left, right, full, work, pixel, of);
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
extern "C" __global__ void CLUSTER CLUSTER_OF_SHARES __launch_bounds__(THREADS, 1)
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
    cluster_sync();  // or while another writes its stages
}
