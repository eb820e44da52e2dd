"""reduce_max: the largest element along one axis or of everything; NaN if there is one."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._reductions import Reduction, reduce
from kernelmux.registry.backend import Implementation


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


MAX = Reduction(_larger, -math.inf)


def reduce_max(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return reduce(MAX, x, axis, keepdim)


VARIANTS = {"split": Implementation(fn=reduce_max, idea="long axes in chunks, then the chunks: no atomics")}
