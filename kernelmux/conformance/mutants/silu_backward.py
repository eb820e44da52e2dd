"""silu_backward, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("silu_backward")


# basics: The gradient of SiLU with the derivative of the sigmoid, and with products that have no value at infinity.


@mutant("the derivative of the sigmoid alone", family="basics", caught_by="accuracy")
def of_the_sigmoid(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(x.double())
    return (grad_out.double() * s * (1 - s)).to(x.dtype).contiguous()


@mutant("the formula as it stands: NaN at the infinities", family="basics", caught_by="special_values")
def by_the_book(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """s * (1 + x * (1 - s)), which is inf * 0 at both infinities."""
    z = x.double()
    s = torch.sigmoid(z)
    return (grad_out.double() * s * (1 + z * torch.sigmoid(-z))).to(x.dtype).contiguous()
