"""swiglu, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("swiglu")


# basics: SwiGLU as two operators in a row, and with its inputs in the other order.


@mutant("silu(a) is rounded before the product", family="basics", caught_by="accuracy")
def rounded_between(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """silu(a) goes through the dtype of the tensors on its way to the product."""
    y: torch.Tensor = sound("silu", a) * b.contiguous()
    return y


@mutant("the second input is the gate, as in other conventions", family="basics", caught_by="accuracy")
def gate_last(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = sound("swiglu", b, a)
    return y
