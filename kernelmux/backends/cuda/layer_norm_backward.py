"""Gradients of layer normalisation on CUDA."""

import torch

from kernelmux.backends.cuda._families.row_gradients import RowGradients, gradient_variant
from kernelmux.backends.cuda._launch.runtime import Source

_GRADIENTS = RowGradients(Source(__file__), "layer_norm_backward", ("grad_out", "x"), sums=("grad_weight", "grad_bias"))


def layer_norm_backward(
    walk: str, grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, ...]:
    return _GRADIENTS.run(walk, (grad_out, x), weight, eps)


VARIANTS = gradient_variant(_GRADIENTS, layer_norm_backward)
