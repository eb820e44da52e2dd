"""reduce_max: the largest element along one axis or of everything; NaN if there is one."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernelmux.backends.triton._families.reductions import extremum_variant


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


VARIANTS = extremum_variant(_larger, -math.inf)
