"""Minimum, broken."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation


def flushing(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Comparisons that take subnormal numbers for zeros."""
    tiny = x.abs() < torch.finfo(torch.float32).smallest_normal
    y: torch.Tensor = sound("reduce_min", torch.where(tiny, 0.0, x), axis, keepdim)
    return y


def from_the_largest_number(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y: torch.Tensor = sound("reduce_min", x, axis, keepdim)
    return y.clamp(max=torch.finfo(x.dtype).max)


VARIANTS = {
    "flushing": Implementation(fn=flushing, idea="subnormal numbers are zeros"),
    "from_the_largest_number": Implementation(fn=from_the_largest_number, idea="starts at the largest finite number"),
}

CAUGHT_BY = {"flushing": "accuracy", "from_the_largest_number": "special_values"}
