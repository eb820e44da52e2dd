// The second kernel of attention whose keys are split over blocks.
#pragma once
#include "attention_packed.cuh"
#include "dependent_launch.cuh"

// A block joins the splits of a row.
extern "C" __global__ void __launch_bounds__(32 * JOINERS)
    attention_merge(Element* __restrict__ out, float* __restrict__ lse, const float* __restrict__ parts,
                    const float* __restrict__ logs, int splits) {
    wait_for_previous();
    const i64 row = blockIdx.x;
    join_parts(out, lse, parts, logs, row, splits, [&](int split) { return row * splits + split; });
}
