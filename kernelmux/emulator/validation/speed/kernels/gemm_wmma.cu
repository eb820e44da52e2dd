// C [M, N] = A [M, K] * B [K, N] in fp16 with fp32 sums: a warp makes a 16 x 16 tile from global memory.
#include <mma.h>

using namespace nvcuda::wmma;

extern "C" __global__ void gemm(const __half* a, const __half* b, float* c, int N, int K) {
    const int column = (blockIdx.x * blockDim.y + threadIdx.y) * 16, row = blockIdx.y * 16;
    fragment<matrix_a, 16, 16, 16, __half, row_major> left;
    fragment<matrix_b, 16, 16, 16, __half, row_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.f);
    for (int k = 0; k < K; k += 16) {
        load_matrix_sync(left, a + row * K + k, K);
        load_matrix_sync(right, b + k * N + column, N);
        mma_sync(sum, left, right, sum);
    }
    store_matrix_sync(c + row * N + column, sum, N, mem_row_major);
}
