"""Gradient of GELU by the function that torch's autograd calls."""

import torch

from kernelmux.registry.backend import Implementation


def gelu_backward(grad_out: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    grad_x: torch.Tensor = torch.ops.aten.gelu_backward(grad_out, x, approximate=approximate)
    return grad_x.contiguous()


VARIANTS = {"plain": Implementation(fn=gelu_backward, idea="torch.ops.aten.gelu_backward")}
