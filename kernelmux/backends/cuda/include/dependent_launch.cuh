// A kernel that starts while the one ahead of it still runs (programmatic dependent launch), and waits for that itself: what
// starting takes is over when the other ends.
//
//   -DFOLLOWS=1   launched so (`follows` of a launch); else, and before sm_90, nothing of this is there
#pragma once

#ifndef FOLLOWS
#define FOLLOWS 0
#endif

// Waits for the end of the kernel ahead, then lets the next one start, which finds room as blocks of this one end. Called by
// every thread before it reads or writes memory: what comes behind waits for this kernel alone, so this one has to wait.
//
// H200, us a step of decoding (8 layers as of a Llama of 8 billion parameters, and 12 of 660 million; 1 and 16 sequences),
// without any of this, so, and with the next kernel let start before the wait: 1086, 1044, 1089; 1553, 1466, 1548; 680, 635,
// 635; 881, 785, 826. Weights that are brought to L2 before the wait are of no use: 1068, 1513, 644 and 844.
__device__ __forceinline__ void follow_previous() {
#if FOLLOWS && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The two steps apart, of kernels whose launch says so: the next one may start while this one still works.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
