// The works of attention whose blocks are persistent.
#pragma once
#include "attention.cuh"

// The work of this block in wave `wave`. Every other wave runs backwards: who had the longest piece of one gets the
// shortest of the next.
__device__ __forceinline__ int work_index(int wave) {
    return wave * gridDim.x + (wave % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

// One past the last key that is read: at least one tile, whose keys a row that sees none masks.
__device__ __forceinline__ int end_of(const Place& place) { return max(place.keys, place.first_key + 1); }
