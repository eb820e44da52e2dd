"""Gradients of the sum with RMS normalisation on CUDA."""

import torch

from kernelmux.backends.cuda._families.row_gradients import RowGradients, gradient_variant
from kernelmux.backends.cuda._launch.runtime import Source

_GRADIENTS = RowGradients(
    Source(__file__), "add_rms_norm_backward", ("grad_y", "grad_total", "total"), sums=("grad_weight",)
)


def add_rms_norm_backward(
    walk: str, grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, ...]:
    return _GRADIENTS.run(walk, (grad_y, grad_total, total), weight, eps)


VARIANTS = gradient_variant(_GRADIENTS, add_rms_norm_backward)
