"""Gradient of hard swish, in fp32 steps of torch."""

import torch

from kernelmux.registry.backend import Implementation


def hardswish_backward(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    z = x.float()
    slope = torch.where(z < -3, 0.0, torch.where(z > 3, 1.0, z / 3 + 0.5))
    return (grad_out.float() * slope).to(x.dtype).contiguous()


VARIANTS = {"plain": Implementation(fn=hardswish_backward, idea="torch.where, in fp32")}
