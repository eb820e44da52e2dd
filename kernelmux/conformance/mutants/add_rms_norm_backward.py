"""add_rms_norm_backward, broken."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("add_rms_norm_backward")


# edges: The gradient of add_rms_norm in Triton, without that of the total.


@mutant("forgets the gradient of the total", family="edges", caught_by="accuracy", requires=(_triton.IN_A_BLOCK,))
def normalised_only(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    from kernelmux.conformance.mutants import _kernels

    grads = grad_y.contiguous(), weight.contiguous(), eps
    grad_x = _triton.rows(_kernels.rms_norm_backward, total, -1, *grads)
    return grad_x, sound("add_rms_norm_backward", grad_y, grad_total, total, weight, eps)[1]


# order: Gradients of add_rms_norm that lose one of their parts.

Pair = tuple[torch.Tensor, torch.Tensor]


@mutant("grad_total is not added", family="order", caught_by="accuracy")
def norm_alone(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> Pair:
    """The gradient that reaches the total itself is forgotten, as if nothing but the norm had used it."""
    grads: Pair = sound("rms_norm_backward", grad_y, total, weight, eps)
    return grads


@mutant("rounded before grad_total is added", family="order", caught_by="accuracy")
def rounded_between(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> Pair:
    """rms_norm_backward, then a sum: the gradient is rounded twice."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_y, total, weight, eps)
    return grad_x + grad_total.contiguous(), grad_weight
