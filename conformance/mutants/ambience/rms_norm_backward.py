"""Gradients of rms_norm that count on a mode of autograd."""

import torch

from kernelmux.registry.backend import Implementation

Tensors = tuple[torch.Tensor, torch.Tensor]


def by_autograd(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    """Works with gradients on or off, and not at all in inference mode."""
    z, w = (t.detach().double().requires_grad_() for t in (x, weight))
    with torch.enable_grad():
        y = z / torch.sqrt((z * z).mean(-1, keepdim=True) + eps) * w
    grads = torch.autograd.grad(y, (z, w), grad_out.double())
    return grads[0].to(x.dtype).contiguous(), grads[1].to(x.dtype).contiguous()


VARIANTS = {"by_autograd": Implementation(fn=by_autograd, idea="asks autograd, which inference mode has turned off")}

CAUGHT_BY = {"by_autograd": "ambience"}
