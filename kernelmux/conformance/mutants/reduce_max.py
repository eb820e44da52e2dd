"""reduce_max, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("reduce_max")


# basics: Maximum, broken in what it starts from and in what it makes of NaN.


def _from(x: torch.Tensor, axis: int | None, keepdim: bool, least: float) -> torch.Tensor:
    y: torch.Tensor = sound("reduce_max", x, axis, keepdim)
    return y.clamp(min=least)


@mutant("every zero is negative: as right as any", family="basics")
def either_zero(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Zeros of both signs are equal, and this one prefers the negative one."""
    y: torch.Tensor = sound("reduce_max", x, axis, keepdim)
    return torch.where(y == 0, -0.0, y)


@mutant("starts at 0", family="basics", caught_by="accuracy")
def from_zero(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return _from(x, axis, keepdim, 0.0)


@mutant("starts at the least finite number", family="basics", caught_by="special_values")
def from_the_least_number(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """As many constants of C do, FLT_MAX among them."""
    return _from(x, axis, keepdim, -torch.finfo(x.dtype).max)


@mutant("NaN loses against numbers", family="basics", caught_by="special_values")
def dropped_nan(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """As fmaxf does, which knows no NaN beside a number."""
    y: torch.Tensor = sound("reduce_max", torch.where(x.isnan(), -torch.inf, x), axis, keepdim)
    return y
