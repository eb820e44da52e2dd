"""Gradients of layer norm by torch's own operators."""

import torch

from kernelmux.registry.backend import Implementation

MANY_ROWS = 2**16  # beyond it torch's CUDA kernel keeps the parts of grad_weight's sums in the dtype of the weight


def layer_norm_backward(
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


VARIANTS = {"eager": Implementation(fn=layer_norm_backward, idea="torch.native_layer_norm and its backward")}
