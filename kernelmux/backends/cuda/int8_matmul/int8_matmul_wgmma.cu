// int8_matmul on Hopper's asynchronous tensor cores: c = a b in int32, or scale_a * (a b) * scale_b in bf16.
#include "int8_products.cuh"

#define NUMBER int
#define IN_REGISTERS "+r"
#define TYPES ".s32.s8.s8"
#define FLAGS ""
#include "byte_products.cuh"

constexpr int SCALE_BYTES = SCALED && SCALES_B ? 4 * CONSUMERS * 4 * BLOCK_N : 0;

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
    int8_matmul_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                      const float* __restrict__ scale_a, const float* __restrict__ scale_b, RESULTS c, int M,
                      int N, int K, int whole) {
    extern __shared__ __align__(1024) unsigned char stages[];  // then strips and scales of consumer warps, then barriers
    unsigned char* strips = stages + STAGES * STAGE_BYTES;
    Ring ring(stages, reinterpret_cast<Barrier*>(strips + STRIP_BYTES + SCALE_BYTES));
    Sums<BLOCK_N> sums = {};
    for_each_work(ring, a, b, M, N, K, whole, [&](int row, int column, auto some) {
        constexpr int Count = decltype(some)::count;
        Sums<Count>& sum = first<Count>(sums);
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
        Output* strip = reinterpret_cast<Output*>(strips) + warp * 16 * STRIP_PITCH;
        float* columns = reinterpret_cast<float*>(strips + STRIP_BYTES) + (SCALE_BYTES ? warp * BLOCK_N : 0);
        if constexpr (SCALE_BYTES > 0) fetch_scales<Count>(columns, scale_b, column, N);
        accumulate(sum, ring, K);
        if constexpr (SCALED) {
            float left[2];
#pragma unroll
            for (int half = 0; half < 2; half++)
                left[half] = scale_of(scale_a, min(row + lane / 4 + 8 * half, M - 1) * SCALES_A);
            const float one = SCALE_BYTES ? 1.0f : scale_of(scale_b, 0);
            if constexpr (SCALE_BYTES > 0) copy_async_wait<0>();
            __syncwarp();
            store_sums<float>(sum, strip, c, row, column, M, N, [&](auto& x, int first) {
                constexpr int Groups = sizeof(x) / sizeof(x[0]);
#pragma unroll
                for (int i = 0; i < 4 * Groups; i++) {
                    const float right = SCALE_BYTES ? columns[first + i / 4 * 8 + lane % 4 * 2 + i % 2] : one;
                    x[i / 4][i % 4] = x[i / 4][i % 4] * left[i % 4 / 2] * right;
                }
            });
        } else {
            store_sums<int>(sum, strip, c, row, column, M, N, [](auto&, int) {});
        }
    });
}
