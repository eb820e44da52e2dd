"""argmax: where the largest element is, along one axis or in everything; the first of equals, and the first NaN."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._families.reductions import ReductionOperator, reduce
from kernelmux.registry.backend import Implementation


@triton.jit
def _better(a, b):
    """Whether b beats a: it is larger, or the first NaN of the two."""
    return (a == a) & ~(b <= a)


@triton.jit
def _best(a, b):
    """The better of two, NaN if there is one."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _index(value, index):
    return index


ARGMAX = ReductionOperator(_best, -math.inf, _index, torch.int64, _better)


def argmax(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return reduce(ARGMAX, x, axis, keepdim)


IDEA = "the best value, then the least of its indices; long axes in chunks: no atomics"
VARIANTS = {"split": Implementation(fn=argmax, idea=IDEA)}
