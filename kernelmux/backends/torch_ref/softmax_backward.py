"""Gradient of softmax by the function that torch's autograd calls."""

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import OneOf
from kernelmux.registry.numerics import Rounding


def plain(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    grad_x: torch.Tensor = torch.ops.aten._softmax_backward_data(grad_out, y, axis, y.dtype)
    return grad_x.contiguous()


def exact(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if torch.is_grad_enabled() and (grad_out.requires_grad or y.requires_grad):  # torch's function has no derivative
        g, p = grad_out.float(), y.float()
        return (scale * p * (g - (g * p).sum(axis, keepdim=True))).to(y.dtype).contiguous()
    grad: torch.Tensor = torch.ops.aten._softmax_backward_data(grad_out.float(), y.float(), axis, torch.float32)
    return (grad * scale).to(y.dtype).contiguous()


def _products(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Each product moves its own element, and through their sum all of them."""
    size = (grad_out * y).abs()
    return size + y.abs() * size.sum(axis, keepdim=True) if y.dim() else size * (1 + y.abs())


def _moved(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return 1 + y.abs() * (y.shape[axis] if y.dim() else 1)


PRODUCTS = Rounding("grad_out * y, on a GPU", _products, _moved)

VARIANTS = {
    "plain": Implementation(
        fn=plain,
        idea="torch.ops.aten._softmax_backward_data",
        requires=(OneOf("scale", 1.0),),
        rounds=(PRODUCTS,),
    ),
    "exact": Implementation(fn=exact, idea="torch.ops.aten._softmax_backward_data in fp32"),
}
