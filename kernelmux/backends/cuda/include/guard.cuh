// A launch behind another one that computes the same faster, but not of all numbers: it computes all of it the plain way if
// one such number was met, and is over at once otherwise.
//
//   -DGUARDED=n   n words, in front of the other arguments, of which one is not 0 where a number was met (planes.cu)
#pragma once
#include "dependent_launch.cuh"

#if GUARDED
#define GUARD_PARAMETER const int *__restrict__ flags,
// All threads of a block leave by it. What it repeats must be over: what comes behind waits for this launch alone.
#define RETURN_IF_SPARED()                                                                                           \
    {                                                                                                                \
        wait_for_previous();                                                                                         \
        int met = 0;                                                                                                 \
        const int threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;                \
        for (int i = thread; i < GUARDED; i += threads) met |= flags[i];                                             \
        if (!__syncthreads_or(met)) return;                                                                          \
    }
#else
#define GUARD_PARAMETER
#define RETURN_IF_SPARED()
#endif
