"""A kernel that starts while the one ahead of it still runs, and waits for that itself: programmatic dependent launch."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.launch import Config, overlaps

FEW = 128  # programs of a kernel that is over soon after it has started, so that starting it early counts


@triton.jit
def follow_previous(FOLLOWS: tl.constexpr):
    """Waits for the end of the kernel ahead, then lets the next one start, before anything is read or written.

    H200, us a step of decoding without any of this and so: see dependent_launch.cuh of the CUDA backend."""
    if FOLLOWS:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()


def following(device: int, programs: int = 1) -> Config:
    """What makes a kernel of so many programs, with `follow_previous`, start early, if the GPU can and it counts."""
    return {"FOLLOWS": True, "launch_pdl": True} if programs <= FEW and overlaps(device) else {}
