"""Gradient of softmax by the function that torch's autograd calls."""

import torch

from kernelmux.registry.backend import Implementation


def softmax_backward(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if torch.is_grad_enabled() and (grad_out.requires_grad or y.requires_grad):  # torch's function has no derivative
        g, p = grad_out.float(), y.float()
        return (scale * p * (g - (g * p).sum(axis, keepdim=True))).to(y.dtype).contiguous()
    grad: torch.Tensor = torch.ops.aten._softmax_backward_data(grad_out.float(), y.float(), axis, torch.float32)
    return (grad * scale).to(y.dtype).contiguous()


VARIANTS = {"eager": Implementation(fn=softmax_backward, idea="torch.ops.aten._softmax_backward_data in fp32")}
