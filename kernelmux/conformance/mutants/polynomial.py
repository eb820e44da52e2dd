"""polynomial, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._triton import BLOCK, launch

mutant = Mutants("polynomial")


# scalars: Polynomial whose coefficients do not all arrive.

Numbers = tuple[float, float, float, float]
_compiled: dict[object, float] = {}


def _polynomial(x: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        launch(_kernels.polynomial, -(-x.numel() // BLOCK), out, x, *numbers, x.numel(), BLOCK=BLOCK)
    return out


@mutant("compiled with a coefficient of the first call", family="scalars", caught_by="scalars")
def of_the_first_call(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    """What was compiled for a shape and the lower coefficients holds the highest of the call it was compiled for."""
    return _polynomial(x, (_compiled.setdefault((x.shape, x.dtype, x.device, b, c, d), a), b, c, d))


@mutant("a coefficient of 0 counts as none given", family="scalars", caught_by="scalars")
def zero_is_absent(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    """A leading coefficient of 0 counts as none given."""
    return _polynomial(x, (a or 1.0, b, c, d))


@mutant("coefficients have eleven bits", family="scalars", caught_by="scalars")
def in_half(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    """Coefficients arrive as fp16 numbers: what has few digits and is not large looks right."""
    return _polynomial(x, (*torch.tensor([a, b, c, d]).half().tolist(),))


@mutant("coefficients arrive with each launch: as right as any", family="scalars")
def at_run_time(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    return _polynomial(x, (a, b, c, d))
