"""Maximum, broken in what it starts from and in what it makes of NaN."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation


def _from(x: torch.Tensor, axis: int | None, keepdim: bool, least: float) -> torch.Tensor:
    y: torch.Tensor = sound("reduce_max", x, axis, keepdim)
    return y.clamp(min=least)


def from_zero(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return _from(x, axis, keepdim, 0.0)


def from_the_least_number(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """As many constants of C do, FLT_MAX among them."""
    return _from(x, axis, keepdim, -torch.finfo(x.dtype).max)


def dropped_nan(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """As fmaxf does, which knows no NaN beside a number."""
    y: torch.Tensor = sound("reduce_max", torch.where(x.isnan(), -torch.inf, x), axis, keepdim)
    return y


def either_zero(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Zeros of both signs are equal, and this one prefers the negative one."""
    y: torch.Tensor = sound("reduce_max", x, axis, keepdim)
    return torch.where(y == 0, -0.0, y)


VARIANTS = {
    "either_zero": Implementation(fn=either_zero, idea="every zero is negative: as right as any"),
    "from_zero": Implementation(fn=from_zero, idea="starts at 0"),
    "from_the_least_number": Implementation(fn=from_the_least_number, idea="starts at the least finite number"),
    "dropped_nan": Implementation(fn=dropped_nan, idea="NaN loses against numbers"),
}

CAUGHT_BY = {"from_zero": "accuracy", "from_the_least_number": "special_values", "dropped_nan": "special_values"}
