"""silu, broken."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("silu")


# bits: SiLU, broken where the formula as it stands has no value.


@mutant("-inf / inf, where silu is 0", family="bits", caught_by="special_values")
def by_division(x: torch.Tensor) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    return _triton.flat(_kernels.silu_by_division, x)


@mutant("the bound that keeps -inf out keeps NaN out as well", family="bits", caught_by="special_values")
def cut_off(x: torch.Tensor) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    return _triton.flat(_kernels.silu_cut_off, x)


@mutant("the quotient, and 0 at -inf: as right as any", family="bits")
def limit_last(x: torch.Tensor) -> torch.Tensor:
    """The quotient, then the limit where it is NaN and x is not."""
    z = x.double()
    y = z / (1 + torch.exp(-z))
    return torch.where(z == -torch.inf, 0.0, y).to(x.dtype).contiguous()
