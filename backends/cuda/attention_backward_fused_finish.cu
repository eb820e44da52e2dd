// grad_q = scale * sums, from the order in which the warpgroups of attention_backward_fused.cu keep their parts, rounded
// to the storage dtype. A block has 8 queries; those of a tile that no key sees were never added to and give zeros.
#include "attention_backward.cuh"

#ifndef TILE
#define TILE 64
#endif
#ifndef OWN
#define OWN 128  // keys of a block that adds
#endif

#define THREADS 128
#define PANELS ((HEAD_DIM + 63) / 64)
#define ROW (64 + 4)  // floats; 8 rows apart, lanes meet in no bank

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_fused_finish(const float* __restrict__ sums, Element* __restrict__ out, int M, int N, int window,
                                    float scale) {
    __shared__ float rows[8][ROW];
    const int eights = cdiv(M, 8), block = blockIdx.x / eights, eight = blockIdx.x % eights, query = eight * 8;
    const int slice = block / PANELS, panel = block % PANELS;
    const Shape shape = {1, 1, M, N, 0, window};
    const Interval keys = keys_of_tile(query / TILE * TILE, TILE, shape);
    const int thread = threadIdx.x;
    const i64 place = (i64)block * eights + eight;
    float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
    if (keys.first < keys.end) x = reinterpret_cast<const float4*>(sums)[place * 128 + thread];
    const int column = thread / 32 * 16 + thread % 32 / 4, row = thread % 4 * 2;
    rows[row][column] = x.x * scale, rows[row + 1][column] = x.y * scale;
    rows[row][column + 8] = x.z * scale, rows[row + 1][column + 8] = x.w * scale;
    __syncthreads();
    const int to = threadIdx.x / 8, from = threadIdx.x % 8 * 8, target = 64 * panel + from;
    if (to >= 8 || query + to >= M || target >= HEAD_DIM) return;
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = rows[to][from + i];
    store(out + ((i64)slice * M + query + to) * HEAD_DIM + target, from_floats<Element>(y));
}
