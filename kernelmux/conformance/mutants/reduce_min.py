"""reduce_min, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("reduce_min")


# basics: Minimum, broken.


@mutant("subnormal numbers are zeros", family="basics", caught_by="accuracy")
def flushing(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Comparisons that take subnormal numbers for zeros."""
    tiny = x.abs() < torch.finfo(torch.float32).smallest_normal
    y: torch.Tensor = sound("reduce_min", torch.where(tiny, 0.0, x), axis, keepdim)
    return y


@mutant("starts at the largest finite number", family="basics", caught_by="special_values")
def from_the_largest_number(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y: torch.Tensor = sound("reduce_min", x, axis, keepdim)
    return y.clamp(max=torch.finfo(x.dtype).max)
