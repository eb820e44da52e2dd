"""Gradient of a convolution with respect to its kernels, by torch.nn.grad.conv2d_weight."""

import torch
from torch.nn.grad import conv2d_weight

from kernelmux.backends.torch_ref.conv2d import MOST, coarse, through_single
from kernelmux.registry.backend import Implementation
from kernelmux.registry.memory_order import format_of
from kernelmux.registry.windows import Pair


def conv2d_backward_weight(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    shape = (grad_out.shape[1], x.shape[1], *kernel)
    if not (grad_out.numel() and x.numel()):
        return x.new_zeros(shape)
    found = _in_parts(grad_out, x, kernel, stride, padding, dilation)
    return found.contiguous(memory_format=format_of(x))


def _in_parts(grad_out: torch.Tensor, x: torch.Tensor, *window: Pair) -> torch.Tensor:
    """By half of the channels, or of the filters, at a time where a tensor has more than MOST elements."""
    filters, channels, (rows, columns) = grad_out.shape[1], x.shape[1], window[0]
    if x.numel() > MOST and channels > 1:
        return torch.cat([_in_parts(grad_out, part, *window) for part in x.chunk(2, 1)], 1)
    if max(grad_out.numel(), filters * channels * rows * columns) > MOST and filters > 1:
        return torch.cat([_in_parts(part, x, *window) for part in grad_out.chunk(2, 1)])
    return _whole(grad_out, x, *window)


def _whole(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    shape, factors = (grad_out.shape[1], x.shape[1], *kernel), [x, grad_out]
    if through_single(x):
        factors = [t.float() for t in factors]
    elif coarse(x):
        factors = [t.double() for t in factors]
    found: torch.Tensor = conv2d_weight(factors[0], shape, factors[1], stride, padding, dilation)  # type: ignore[no-untyped-call]
    return found.to(x.dtype)


VARIANTS = {
    "eager": Implementation(
        fn=conv2d_backward_weight,
        idea="torch.nn.grad.conv2d_weight",
        arithmetic="mma",
        deterministic=False,  # cuDNN may add parts in any order
    )
}
