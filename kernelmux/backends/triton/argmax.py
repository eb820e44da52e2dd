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
def _later(a, i, b, j):
    """The better of two elements of which b comes after a."""
    better = _better(a, b)
    return tl.where(better, b, a), tl.where(better, j, i)


@triton.jit
def _either(a, i, b, j):
    """The better of two elements, the first of two that are equal or NaN."""
    better = _better(a, b) | (~_better(b, a) & (j < i))
    return tl.where(better, b, a), tl.where(better, j, i)


@triton.jit
def _index(value, index):
    return index


ARGMAX = ReductionOperator(_either, -math.inf, _index, indexed=True, later=_later, dtype=torch.int64)


def argmax(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return reduce(ARGMAX, x, axis, keepdim)


VARIANTS = {"split": Implementation(fn=argmax, idea="pairs of value and index; long axes in chunks: no atomics")}
