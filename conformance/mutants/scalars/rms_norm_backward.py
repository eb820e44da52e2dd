"""Gradients of rms_norm, broken for other eps than the default."""

import torch

from kernelmux.registry.backend import Implementation

Tensors = tuple[torch.Tensor, torch.Tensor]
USUAL = 1e-6


def _backward(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, eps_weight: float) -> Tensors:
    """The closed form in float64; each gradient with an eps of its own."""
    g, z, w = (t.double() for t in (grad_out, x, weight))
    square = (z * z).mean(-1, keepdim=True)
    r, r_weight = torch.rsqrt(square + eps), torch.rsqrt(square + eps_weight)
    grad_x = r * (g * w - z * r * r * (g * w * z).mean(-1, keepdim=True))
    grad_weight = (g * z * r_weight).reshape(-1, x.shape[-1]).sum(0) if x.shape[-1] else w
    return grad_x.to(x.dtype).contiguous(), grad_weight.to(x.dtype).contiguous()


def closed_form(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    return _backward(grad_out, x, weight, eps, eps)


def fixed_eps(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    return _backward(grad_out, x, weight, USUAL, USUAL)


def eps_for_x_only(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    return _backward(grad_out, x, weight, eps, USUAL)


VARIANTS = {
    "closed_form": Implementation(fn=closed_form, idea="the formula written out: nothing is wrong with it"),
    "fixed_eps": Implementation(fn=fixed_eps, idea="the argument eps is ignored"),
    "eps_for_x_only": Implementation(fn=eps_for_x_only, idea="the gradient of the weight ignores eps"),
}

CAUGHT_BY = {"fixed_eps": "scalars", "eps_for_x_only": "scalars"}
