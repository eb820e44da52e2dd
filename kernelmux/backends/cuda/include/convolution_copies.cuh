// What the convolutions through TMA copy: pixels in im2col mode and kernels for their products, sums to pixels behind them.
#pragma once
#include "matmul_wgmma.cuh"

// Pixels one after the other, as many as the map says, of 64 channels from c on each: those `down` rows and `across`
// columns further on than (n, y, x) and what follows it. Zeros for what lies outside of an image.
__device__ __forceinline__ void load_pixels(void* to, const TensorMap& image, Barrier& full, int n, int y, int x, int c,
                                            int down, int across) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(to)),
        "l"(&image), "r"(shared_address(&full)), "r"(c), "r"(x), "r"(y), "r"(n), "h"((short)across), "h"((short)down)
        : "memory");
}

// The tile of a weight [O, R, S, C] at tap (r, s) for a step of 64 of K from k on and the lines from `line` on, so many of
// them. K-major, K is the channels of the image, lines are filters; otherwise the reverse.
template <bool KMajor = B_K_MAJOR, int Lines = BLOCK_N>
__device__ __forceinline__ void load_weight(unsigned char* tile, const TensorMap& weight, Barrier& full, int line, int k,
                                            int r, int s) {
    if constexpr (KMajor) {
        tma_load(tile, weight, full, k, s, r, line);
    } else {
#pragma unroll
        for (int i = 0; i < cdiv(Lines, 64); i++) tma_load(tile + i * BOX_BYTES, weight, full, line + 64 * i, s, r, k);
    }
}

// 16 rows of sums to their pixels of out [pixels, N], by way of the warp's strip of shared memory as in Strip. pixel: lane
// i % 16 has that of row i, or -1. Not `met`, the sums are those of the work before, and these are zero.
__device__ __forceinline__ void store_pixels(Output* strip, const float (*sum)[4], Output* out,
                                             const Epilogue<Output>& epilogue, int pixel, bool met, int column, int N) {
    constexpr int Pitch = Strip<STRIP_N>::Pitch;
    const int lane = threadIdx.x % 32;
    Output* mine = strip + lane / 4 * Pitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < STRIP_N / 8; j++) {
        float bias[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int n = column + 8 * j + lane % 4 * 2 + i;
            bias[i] = n < N ? epilogue.bias_of(n) : 0.0f;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float pair[2];
#pragma unroll
            for (int i = 0; i < 2; i++) pair[i] = Epilogue<Output>::biased(met ? sum[j][2 * half + i] : 0.0f, bias[i]);
            store(mine + 8 * j + 8 * half * Pitch, from_floats<Output>(pair));
        }
    }
    __syncwarp();
    for (int i = lane * C_VECTOR; i < 16 * STRIP_N; i += 32 * C_VECTOR) {
        const int at = __shfl_sync(~0u, pixel, i / STRIP_N), n = column + i % STRIP_N;
        if (at >= 0 && n < N) store(out + (i64)at * N + n, load<C_VECTOR>(strip + i / STRIP_N * Pitch + i % STRIP_N));
    }
    __syncwarp();
}
