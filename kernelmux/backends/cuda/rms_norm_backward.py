"""Gradients of RMS normalisation on CUDA."""

import torch

from kernelmux.backends.cuda._families.row_gradients import RowGradients, gradient_variants
from kernelmux.backends.cuda._launch.runtime import Source

_GRADIENTS = RowGradients(Source(__file__), "rms_norm_backward", ("grad_out", "x"), sums=("grad_weight",))


def rms_norm_backward(
    walk: str, grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, ...]:
    return _GRADIENTS.run(walk, (grad_out, x), weight, eps)


VARIANTS = gradient_variants(_GRADIENTS, rms_norm_backward)
