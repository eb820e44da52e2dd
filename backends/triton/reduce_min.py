"""reduce_min: the smallest element along one axis or of everything; NaN if there is one."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._reductions import Reduction, reduce
from kernelmux.registry.backend import Implementation


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


MIN = Reduction(_smaller, math.inf)


def reduce_min(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return reduce(MIN, x, axis, keepdim)


VARIANTS = {"split": Implementation(fn=reduce_min, idea="long axes in chunks, then the chunks: no atomics")}
