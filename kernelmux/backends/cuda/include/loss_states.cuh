// What is known of a part of a row of logits, as one launch or block leaves it to another: {maximum, sum of exponentials}, with
// smoothing {sum, 1} beside it.
#pragma once

#include "row_losses.cuh"

constexpr int WORDS = SMOOTHED ? 2 : 1;  // of a part

// Adds a part to those before it.
__device__ __forceinline__ void add_part(Logits& row, float2 part) {
    LogSumExp& e = row.exponentials;
    e.rescale(fmaxf(e.m, part.x), Logits::factor);
    if (part.y != 0.0f) e.sum += part.y * fast_exp2((part.x - e.m) * Logits::factor);
}
