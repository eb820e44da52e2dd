"""Gradient of GELU by the function that torch's autograd calls."""

import torch

from kernelmux.registry.backend import Implementation


def gelu_backward(grad_out: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    grad_x: torch.Tensor = torch.ops.aten.gelu_backward(grad_out, x, approximate=approximate)
    return grad_x.contiguous()


# In bf16 on a CPU oneDNN computes it, and refuses a gradient whose rows overlap (torch 2.13).
VARIANTS = {
    "plain": Implementation(fn=gelu_backward, idea="torch.ops.aten.gelu_backward", layout={"grad_out": "contiguous"})
}
