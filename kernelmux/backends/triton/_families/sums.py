"""Sums, for reduce_sum and for operators that end in one."""

from __future__ import annotations

import triton

from kernelmux.backends.triton._families.reductions import ReductionOperator, ReductionStep, run, steps

__all__ = ["SUM", "ReductionStep", "run", "sum_first"]


@triton.jit
def _plus(a, b):
    return a + b


SUM = ReductionOperator(_plus, 0.0)


def sum_first(device: int, count: int, length: int) -> tuple[ReductionStep, ...]:
    """The steps that add `count` contiguous rows of fp32, which the launch before has made."""
    return steps(SUM, device, (count, length), (length, 1), 4, 0, True, follows=True)
