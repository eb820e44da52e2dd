"""Gradients of the sum with RMS norm: torch's autograd through the norm, and the gradient of the sum."""

import torch

from kernelmux.backends.torch_ref._conditions import few_rows
from kernelmux.backends.torch_ref.rms_norm_backward import rms_norm_gradients
from kernelmux.registry.backend import Implementation
from kernelmux.registry.numerics import Rounding


def plain(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x, grad_weight = rms_norm_gradients(grad_y, total, weight, eps, total.dtype)
    return (grad_total + grad_x).contiguous(), grad_weight.contiguous()


def exact(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x, grad_weight = rms_norm_gradients(grad_y, total, weight, eps, torch.float32)
    return (grad_total.float() + grad_x).to(total.dtype).contiguous(), grad_weight.to(weight.dtype).contiguous()


def _of_norm(
    g: torch.Tensor, grad_total: torch.Tensor, t: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    r = torch.rsqrt(t.square().mean(-1, keepdim=True) + eps)
    return (r * (g * weight - t * r * r * (g * weight * t).mean(-1, keepdim=True))).abs()


NORM = Rounding(
    "the gradient of the norm", _of_norm, lambda g, grad_total, *rest: torch.ones_like(grad_total), "grad_x"
)

VARIANTS = {
    "plain": Implementation(
        fn=plain, idea="torch.autograd through rms_norm, and a sum", requires=(few_rows("total"),), rounds=(NORM,)
    ),
    "exact": Implementation(fn=exact, idea="torch.autograd through rms_norm, in fp32"),
}
