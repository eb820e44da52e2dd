"""Gradients of layer normalisation, broken."""

import torch

from kernelmux.registry.backend import Implementation

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _gradients(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, level: bool) -> Three:
    g, z = grad_out.double(), x.double()
    c = z - z.mean(-1, keepdim=True)
    r = 1 / torch.sqrt((c * c).mean(-1, keepdim=True) + eps)
    h, gw = c * r, g * weight
    inner = gw - h * (gw * h).mean(-1, keepdim=True)
    grad_x = r * (inner - gw.mean(-1, keepdim=True) if level else inner)
    rows = tuple(range(x.dim() - 1))
    sums = [t.sum(rows) if rows else t for t in (g * h, g)]
    return grad_x.to(x.dtype).contiguous(), sums[0].to(x.dtype).contiguous(), sums[1].to(x.dtype).contiguous()


def sound(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Three:
    return _gradients(grad_out, x, weight, eps, level=True)


def as_rms_norm(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Three:
    return _gradients(grad_out, x, weight, eps, level=False)


def weighted_bias(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Three:
    grad_x, grad_weight, grad_bias = sound(grad_out, x, weight, eps)
    return grad_x, grad_weight, grad_bias * weight


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it"),
    "as_rms_norm": Implementation(fn=as_rms_norm, idea="forgets the gradient through the mean"),
    "weighted_bias": Implementation(fn=weighted_bias, idea="multiplies the gradient of the bias by the weight"),
}

CAUGHT_BY = {"as_rms_norm": "accuracy", "weighted_bias": "accuracy"}
