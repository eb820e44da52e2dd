"""Gradients of layer norm by torch's own operators."""

import torch

from kernelmux.backends.torch_ref._conditions import MANY_ROWS, Where, few_rows
from kernelmux.registry.backend import Implementation

T = torch.Tensor


def plain(grad_out: T, x: T, weight: T, eps: float) -> tuple[T, T, T]:
    bias, shape = torch.zeros_like(weight), weight.shape
    _, mean, spread = torch.ops.aten.native_layer_norm(x, shape, weight, bias, eps)
    backward = torch.ops.aten.native_layer_norm_backward
    grads = backward(grad_out, x, shape, mean, spread, weight, bias, [True, True, True])
    grad_x, grad_weight, grad_bias = (grad.contiguous() for grad in grads)
    return grad_x, grad_weight, grad_bias


def exact(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """On a CPU in fp32: torch keeps the mean and the spread of 16-bit rows in 16 bits there."""
    plain = x.is_cuda and x.numel() <= MANY_ROWS * len(weight)
    g, z, w = (grad_out, x, weight) if plain else (grad_out.float(), x.float(), weight.float())
    bias, shape = torch.zeros_like(w), weight.shape
    _, mean, spread = torch.ops.aten.native_layer_norm(z, shape, w, bias, eps)
    grads = torch.ops.aten.native_layer_norm_backward(g, z, shape, mean, spread, w, bias, [True, True, True])
    grad_x, grad_weight, grad_bias = (grad.to(x.dtype).contiguous() for grad in grads)
    return grad_x, grad_weight, grad_bias


WIDE = Where(
    "a GPU or fp32",
    lambda call: call.device.type != "cpu" or call.dtype == torch.float32,
    "torch keeps the mean and the spread of 16-bit rows in 16 bits on a CPU",
)

VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.native_layer_norm and its backward", requires=(WIDE, few_rows("x"))),
    "exact": Implementation(fn=exact, idea="torch.native_layer_norm and its backward, in fp32 where they would round"),
}
