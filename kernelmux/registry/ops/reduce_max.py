"""Largest element over one axis or over all of them."""

from __future__ import annotations

import math

import torch

from kernelmux.registry.ops._extremum import extremum


def reference(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """By comparisons of numbers; NaN is looked for by itself."""
    axes = tuple(range(x.dim())) if axis is None else (axis,)
    nan, numbers = x.isnan(), torch.where(x.isnan(), -math.inf, x)
    for i in reversed(axes):
        nan, numbers = nan.any(i, keepdim=keepdim), numbers.amax(i, keepdim=keepdim)
    return torch.where(nan, math.nan, numbers)


SPEC = extremum(
    name="reduce_max",
    summary="Largest element over one axis, or over all; NaN if there is one.",
    math="y = max of x over axis; of zeros of both signs either one",
    reference=reference,
)
