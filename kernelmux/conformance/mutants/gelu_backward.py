"""gelu_backward, broken."""

import math

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("gelu_backward")


# basics: The gradient of GELU without one of its two terms.


@mutant("x times the density is left out", family="basics", caught_by="accuracy")
def without_density(grad_out: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    """grad_out * Phi(x): the slope of Phi itself is forgotten."""
    if approximate == "tanh":
        y: torch.Tensor = sound("gelu_backward", grad_out, x, approximate)
        return y
    share: torch.Tensor = 0.5 * torch.special.erfc(-x.double() / math.sqrt(2))
    return (grad_out.double() * share).to(x.dtype).contiguous()


# state: What a backward call keeps.

_kept: list[torch.Tensor] = []


@mutant("keeps what large calls were given", family="state", caught_by="state")
def large_kept(grad_out: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    if x.numel() >= 2**19:
        _kept.append(x.detach().clone())
    y: torch.Tensor = sound("gelu_backward", grad_out, x, approximate)
    return y
