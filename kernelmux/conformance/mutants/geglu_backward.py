"""geglu_backward, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("geglu_backward")


# basics: Gradients of GeGLU with the derivative of another formula than the forward call's.

Pair = tuple[torch.Tensor, torch.Tensor]


@mutant("grad_a is always that of the approximation", family="basics", caught_by="accuracy")
def other_derivative(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, approximate: str) -> Pair:
    """grad_b is that of the formula asked for, grad_a that of the default."""
    grad_a, _ = sound("geglu_backward", grad_out, a, b, "tanh")
    _, grad_b = sound("geglu_backward", grad_out, a, b, approximate)
    return grad_a, grad_b
