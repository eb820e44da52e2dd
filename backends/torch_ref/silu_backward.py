"""Gradient of SiLU by the function that torch's autograd calls."""

import torch

from kernelmux.registry.backend import Implementation


def silu_backward(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    grad_x: torch.Tensor = torch.ops.aten.silu_backward(grad_out, x)
    return grad_x.contiguous()


VARIANTS = {"eager": Implementation(fn=silu_backward, idea="torch.ops.aten.silu_backward")}
