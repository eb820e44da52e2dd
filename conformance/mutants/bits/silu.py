"""SiLU, broken where the formula as it stands has no value."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.registry.backend import Implementation


def by_division(x: torch.Tensor) -> torch.Tensor:
    from kernelmux.conformance.mutants.bits import _kernels

    return _triton.flat(_kernels.silu_by_division, x)


def cut_off(x: torch.Tensor) -> torch.Tensor:
    from kernelmux.conformance.mutants.bits import _kernels

    return _triton.flat(_kernels.silu_cut_off, x)


def limit_last(x: torch.Tensor) -> torch.Tensor:
    """The quotient, then the limit where it is NaN and x is not."""
    z = x.double()
    y = z / (1 + torch.exp(-z))
    return torch.where(z == -torch.inf, 0.0, y).to(x.dtype).contiguous()


VARIANTS = {
    "by_division": Implementation(fn=by_division, idea="-inf / inf, where silu is 0"),
    "cut_off": Implementation(fn=cut_off, idea="the bound that keeps -inf out keeps NaN out as well"),
    "limit_last": Implementation(fn=limit_last, idea="the quotient, and 0 at -inf: as right as any"),
}

CAUGHT_BY = {"by_division": "special_values", "cut_off": "special_values"}
