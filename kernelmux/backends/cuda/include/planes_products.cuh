// Products of operands that come as three planes each (planes.cu), six for each product of fp32.
//
// A stage of the ring has one plane of both tiles for BLOCK_K k's, so that three of them serve all six products. The third
// planes come first and are given back first. The sums of BLOCK_K k's are by themselves, small terms first, and are added
// to those before by the FP32 pipes: a tensor core cuts what it adds to, which a long chain would show.
#pragma once
#include "matmul_wgmma.cuh"

constexpr float UNSCALE = 1.0f / (1ll << 48);  // of both operands
constexpr int PLANES_IN_RING[] = {2, 0, 1};    // in this order

// The products of a plane of a's tile, in stage `left`, and one of b's, in stage `right`. last: of a tap, see TAP_K.
__device__ __forceinline__ void multiply_planes(Sums& sum, const Ring& ring, int left, int right, bool add, bool last) {
    const unsigned char* a = ring.a(left) + (threadIdx.x / 128 - 1) * HEIGHT * BOX_BYTES;
#pragma unroll
    for (int step = 0; step < 128 / 32; step++) {
        if (step == TAP_PRODUCTS && last) break;
#pragma unroll
        for (int i = 0; i < HEIGHT; i++)
            wgmma<A_K_MAJOR, B_K_MAJOR>(sum[i], describe<A_K_MAJOR>(a + i * BOX_BYTES, step),
                                        describe<B_K_MAJOR>(ring.b(right), step), add || step > 0, Element());
    }
}

// Adds the products of a work to `total`.
__device__ __forceinline__ void multiply_all_planes(Sums& total, const Ring& ring, Place& place, const Work& work) {
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        const bool last = (k + BLOCK_K) % TAP_K == 0;
        Sums sum;
        Place first = place;
        first.advance();
        Place second = first;
        second.advance();
        barrier_wait(ring.full[place.stage], place.phase);
        barrier_wait(ring.full[first.stage], first.phase);
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) pin(sum[i]);
        wgmma_fence();
        multiply_planes(sum, ring, place.stage, first.stage, false, last);
        multiply_planes(sum, ring, first.stage, place.stage, true, last);
        wgmma_commit();
        barrier_wait(ring.full[second.stage], second.phase);
        multiply_planes(sum, ring, second.stage, second.stage, true, last);
        multiply_planes(sum, ring, second.stage, first.stage, true, last);
        multiply_planes(sum, ring, first.stage, second.stage, true, last);
        wgmma_commit();
        wgmma_wait<1>();
        ring.release(place.stage);
        multiply_planes(sum, ring, first.stage, first.stage, true, last);
        wgmma_commit();
        wgmma_wait<1>();
        ring.release(second.stage);
        wgmma_wait<0>();
        ring.release(first.stage);
        place = second;
        place.advance();
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) {
            pin(sum[i]);
#pragma unroll
            for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
                for (int v = 0; v < 4; v++) total[i][j][v] = fma_gradual(sum[i][j][v], UNSCALE, total[i][j][v]);
        }
    }
}
