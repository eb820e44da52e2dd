"""Polynomial whose coefficients do not all arrive."""

import torch

from kernelmux.conformance.mutants._triton import BLOCK, launch
from kernelmux.registry.backend import Implementation

Numbers = tuple[float, float, float, float]
_compiled: dict[object, float] = {}


def _polynomial(x: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    from kernelmux.conformance.mutants.scalars import _kernels

    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        launch(_kernels.polynomial, -(-x.numel() // BLOCK), out, x, *numbers, x.numel(), BLOCK=BLOCK)
    return out


def of_the_first_call(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    """What was compiled for a shape and the lower coefficients holds the highest of the call it was compiled for."""
    return _polynomial(x, (_compiled.setdefault((x.shape, x.dtype, x.device, b, c, d), a), b, c, d))


def zero_is_absent(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    """A leading coefficient of 0 counts as none given."""
    return _polynomial(x, (a or 1.0, b, c, d))


def in_half(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    """Coefficients arrive as fp16 numbers: what has few digits and is not large looks right."""
    return _polynomial(x, (*torch.tensor([a, b, c, d]).half().tolist(),))


def at_run_time(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    return _polynomial(x, (a, b, c, d))


VARIANTS = {
    "of_the_first_call": Implementation(fn=of_the_first_call, idea="compiled with a coefficient of the first call"),
    "zero_is_absent": Implementation(fn=zero_is_absent, idea="a coefficient of 0 counts as none given"),
    "in_half": Implementation(fn=in_half, idea="coefficients have eleven bits"),
    "at_run_time": Implementation(fn=at_run_time, idea="coefficients arrive with each launch: as right as any"),
}

CAUGHT_BY = dict.fromkeys(("of_the_first_call", "zero_is_absent", "in_half"), "scalars")
