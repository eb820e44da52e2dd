"""Gradient of log_softmax by the function that torch's autograd calls, or by the formula."""

import torch

from kernelmux.registry.backend import Implementation


def plain(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    grad_x: torch.Tensor = torch.ops.aten._log_softmax_backward_data(grad_out, y, axis, y.dtype)
    return grad_x.contiguous()


def exact(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    g = grad_out.float()
    return (g - torch.exp(y.float()) * g.sum(axis, keepdim=True)).to(y.dtype).contiguous()


VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.ops.aten._log_softmax_backward_data"),
    "exact": Implementation(fn=exact, idea="the formula in fp32"),
}
