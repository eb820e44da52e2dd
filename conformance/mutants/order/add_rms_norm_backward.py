"""Gradients of add_rms_norm that lose one of their parts."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

Pair = tuple[torch.Tensor, torch.Tensor]


def norm_alone(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> Pair:
    """The gradient that reaches the total itself is forgotten, as if nothing but the norm had used it."""
    grads: Pair = sound("rms_norm_backward", grad_y, total, weight, eps)
    return grads


def rounded_between(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> Pair:
    """rms_norm_backward, then a sum: the gradient is rounded twice."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_y, total, weight, eps)
    return grad_x + grad_total.contiguous(), grad_weight


VARIANTS = {
    "norm_alone": Implementation(fn=norm_alone, idea="grad_total is not added"),
    "rounded_between": Implementation(fn=rounded_between, idea="rounded before grad_total is added"),
}

CAUGHT_BY = {"norm_alone": "accuracy", "rounded_between": "accuracy"}
