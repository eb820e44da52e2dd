"""Gradient of a convolution with respect to its kernels, by torch.nn.grad.conv2d_weight."""

from math import prod

import torch
from torch.nn.grad import conv2d_weight

from kernelmux.backends.torch_ref._conditions import USUAL, at_most, filled
from kernelmux.backends.torch_ref._zeros import zeros
from kernelmux.backends.torch_ref.conv2d import MOST, coarse, through_single
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost
from kernelmux.registry.spec.sliding_windows import Pair
from kernelmux.registry.util.memory_format import format_of, fresh

SIDE = 2**16  # filters or channels: cuDNN finds no way to compute a gradient of millions


def plain(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    shape = (grad_out.shape[1], x.shape[1], *kernel)
    found: torch.Tensor = conv2d_weight(x, shape, grad_out, stride, padding, dilation)  # type: ignore[no-untyped-call]
    return fresh(found, format_of(x))


def exact(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    shape = (grad_out.shape[1], x.shape[1], *kernel)
    if grad_out.numel() and x.numel():
        found = _in_parts(grad_out, x, kernel, stride, padding, dilation)
    else:
        found = zeros(shape, x, grad_out)
    return fresh(found, format_of(x))


def _in_parts(grad_out: torch.Tensor, x: torch.Tensor, *window: Pair) -> torch.Tensor:
    """So many filters and channels at a time that cuDNN takes them, and that no tensor has more than MOST elements."""
    (n, filters, *places), (_, channels, *pixels), taps = grad_out.shape, x.shape, prod(window[0])
    c = max(1, min(channels, SIDE, MOST // (n * prod(pixels))))
    o = max(1, min(filters, SIDE, MOST // (n * prod(places)), MOST // (c * taps)))
    if (o, c) == (filters, channels):
        return _whole(grad_out, x, *window)
    found = x.new_empty(filters, channels, *window[0])
    for i in range(0, filters, o):
        for j in range(0, channels, c):
            found[i : i + o, j : j + c] = _whole(grad_out[:, i : i + o], x[:, j : j + c], *window)
    return found


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


NEEDS = (
    USUAL,  # in fp32 a flag allows TF32 on a GPU by default, which the spec does not
    filled("grad_out", "x"),
    at_most(MOST, "grad_out", "x"),
    AtMost("O", SIDE),
    AtMost("C", SIDE),
)

VARIANTS = {
    "plain": Implementation(
        fn=plain, idea="torch.nn.grad.conv2d_weight", requires=NEEDS, arithmetic="mma", deterministic=False
    ),
    "exact": Implementation(
        fn=exact,
        idea="torch.nn.grad.conv2d_weight in parts that cuDNN takes, of fp32 not by torch's flags",
        arithmetic="mma",
        deterministic=False,  # cuDNN may add parts in any order
    ),
}
