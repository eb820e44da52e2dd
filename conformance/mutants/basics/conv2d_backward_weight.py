"""Gradient of a convolution with respect to its kernels, broken."""

import torch

from kernelmux.conformance.mutants._sound import sound as right
from kernelmux.registry.backend import Implementation
from kernelmux.registry.memory_order import format_of
from kernelmux.registry.windows import Pair

T = torch.Tensor
BLOCK = 16  # places that are summed at a time


def sound(grad_out: T, x: T, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> T:
    found: T = right("conv2d_backward_weight", grad_out, x, kernel, stride, padding, dilation)
    return found.contiguous(memory_format=format_of(x))


def correlated_backwards(grad_out: T, x: T, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> T:
    return sound(grad_out, x, kernel, stride, padding, dilation).flip(2, 3)


def last_block_dropped(grad_out: T, x: T, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> T:
    """Places beyond the last whole block of them do not count."""
    places = grad_out.shape[0] * grad_out.shape[2] * grad_out.shape[3]
    kept = grad_out.transpose(0, 1).flatten(1).clone()
    kept[:, places // BLOCK * BLOCK if places > BLOCK else places :] = 0
    n, o, p, q = grad_out.shape
    return sound(kept.view(o, n, p, q).transpose(0, 1), x, kernel, stride, padding, dilation)


def mean_over_images(grad_out: T, x: T, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> T:
    found = sound(grad_out, x, kernel, stride, padding, dilation)
    return found / max(len(x), 1)


VARIANTS = {
    "sound": Implementation(sound, "nothing is wrong with it"),
    "correlated_backwards": Implementation(correlated_backwards, "turns kernels round"),
    "last_block_dropped": Implementation(last_block_dropped, "leaves out the last incomplete block of places"),
    "mean_over_images": Implementation(mean_over_images, "takes a mean for a sum"),
}

CAUGHT_BY = {name: "accuracy" for name in VARIANTS if name != "sound"}
