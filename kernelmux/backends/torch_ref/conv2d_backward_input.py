"""Gradient of a convolution with respect to its images, by torch.nn.functional.conv_transpose2d."""

import torch
import torch.nn.functional as F

from kernelmux.backends.torch_ref._conditions import USUAL, filled
from kernelmux.backends.torch_ref._zeros import zeros
from kernelmux.backends.torch_ref.conv2d import convolution
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Pair, windows
from kernelmux.registry.util.memory_format import format_of, fresh


def plain(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    found = F.conv_transpose2d(grad_out, weight, None, stride, padding, output_padding, 1, dilation)
    return fresh(found, format_of(grad_out))


def exact(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    if grad_out.numel() and weight.numel():
        found = convolution(grad_out, weight, None, stride, padding, dilation, output_padding)
    else:
        over = windows(weight.shape, stride, padding, dilation)
        lengths = (o.length(n, r) for o, n, r in zip(over, grad_out.shape[2:], output_padding, strict=True))
        found = zeros((len(grad_out), weight.shape[1], *lengths), grad_out, weight)
    return fresh(found, format_of(grad_out))


VARIANTS = {
    "plain": Implementation(
        fn=plain,
        idea="torch.nn.functional.conv_transpose2d",
        requires=(USUAL, filled("grad_out", "weight")),  # in fp32 a flag allows TF32 on a GPU by default
        arithmetic="mma",
        deterministic=False,
    ),
    "exact": Implementation(
        fn=exact,
        idea="torch.nn.functional.conv_transpose2d, of fp32 not by torch's flags",
        arithmetic="mma",
        deterministic=False,  # cuDNN may add parts in any order
    ),
}
