"""Gradients of the sum with RMS norm: torch's autograd through the norm, and the gradient of the sum."""

import torch

from kernelmux.backends.torch_ref.rms_norm_backward import rms_norm_gradients
from kernelmux.registry.backend import Implementation


def add_rms_norm_backward(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x, grad_weight = rms_norm_gradients(grad_y, total, weight, eps, torch.float32)
    return (grad_total.float() + grad_x).to(total.dtype).contiguous(), grad_weight.to(weight.dtype).contiguous()


VARIANTS = {"eager": Implementation(fn=add_rms_norm_backward, idea="torch.autograd through rms_norm, in fp32")}
