// conv2d and its gradients on the FP32 pipes: a block keeps the patches of 64 positions and the weights of 64 channels
// in shared memory, 16 k's at a time; a value is read from memory once per 64 products, and 4 x 4 sums stay in
// registers.
#include "convolution_tiles.cuh"

constexpr int THREADS = 256, BLOCK = 64, BLOCK_K = 16;
constexpr int PITCH = BLOCK + 4;  // skews the k's by 4 words; rows of float4 stay aligned
using Panel = float[BLOCK_K][PITCH];

template <bool KMajor>
__device__ __forceinline__ void load_panel(Panel& panel, const Element* x, const Place* mn, const Place* k, int rows,
                                           int columns) {
#pragma unroll
    for (int i = threadIdx.x; i < BLOCK * BLOCK_K; i += THREADS) {
        const int at_mn = KMajor ? i / BLOCK_K : i % BLOCK, at_k = KMajor ? i % BLOCK_K : i / BLOCK;
        const Place at = mn[at_mn] + k[at_k];
        panel[at_k][at_mn] = at.within(rows, columns) ? to_float(__ldg(x + at.offset)) : 0.0f;
    }
}

// left [M, K], right [N, K], out [M, N] as `Product` says; blocks (tile of a phase, piece of K).
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    conv2d_tiled(const Element* __restrict__ left, const Element* __restrict__ right, const Element* __restrict__ bias,
                 Output* __restrict__ out, const __grid_constant__ Convolution c) {
    __shared__ alignas(16) Panel a, b;  // [k][m], [k][n]
    __shared__ Tables<BLOCK, BLOCK, BLOCK_K> tables;
    const Product product(c, phase_of_block(c));
    const Work<BLOCK, BLOCK> work(product);
    if (!work.any) return;
    // The 16 lanes that store together follow the contiguous index of the result.
    const int along = threadIdx.x % 16 * 4, across = threadIdx.x / 16 * 4;
    const int row = M_CONTIGUOUS ? along : across, column = M_CONTIGUOUS ? across : along;
    float sum[4][4] = {};
    tables.template fill_rows<THREADS>(product, work.m0, work.n0);
    tables.template fill_k<THREADS>(product, 0, work.k_begin, work.k_end);
    __syncthreads();
    for (int t = 0, tiles = cdiv(work.k_end - work.k_begin, BLOCK_K); t < tiles; t++) {
        load_panel<LEFT_K_MAJOR>(a, left, tables.m, tables.left_k[t % 2], product.left_rows(), product.left_columns());
        load_panel<RIGHT_K_MAJOR>(b, right, tables.n, tables.right_k[t % 2], product.right_rows(), product.right_columns());
        tables.template fill_k<THREADS>(product, t + 1, work.k_begin, work.k_end);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK_K; k++) {
            const Vec<float, 4> x = load<4>(&a[k][row]), y = load<4>(&b[k][column]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] = fma_gradual(x.v[i], y.v[j], sum[i][j]);
        }
        __syncthreads();
    }
    const Result result(out, bias, c);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float one[1] = {sum[i][j]};
            result.store(product, work.m0 + row + i, work.n0 + column + j, one);
        }
}
