"""Gradient of a convolution with respect to its images, broken."""

import torch

from kernelmux.conformance.mutants._sound import sound as right
from kernelmux.registry.backend import Implementation
from kernelmux.registry.memory_order import format_of
from kernelmux.registry.windows import Pair

T = torch.Tensor


def sound(grad_out: T, weight: T, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair) -> T:
    found: T = right("conv2d_backward_input", grad_out, weight, stride, padding, dilation, output_padding)
    return found.contiguous(memory_format=format_of(grad_out))


def flipped(grad_out: T, weight: T, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair) -> T:
    """As one who transposes a convolution by hand and forgets that the kernel turns round."""
    return sound(grad_out, weight.flip(2, 3), stride, padding, dilation, output_padding)


def first_phase(grad_out: T, weight: T, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair) -> T:
    """Only those pixels that the middle of a step meets; the others are taken for zeros."""
    found = sound(grad_out, weight, stride, padding, dilation, output_padding)
    kept = torch.zeros_like(found)
    rows, columns = padding[0] % stride[0], padding[1] % stride[1]
    kept[..., rows :: stride[0], columns :: stride[1]] = found[..., rows :: stride[0], columns :: stride[1]]
    return kept


def end_forgotten(grad_out: T, weight: T, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair) -> T:
    """What lies behind the last place gets nothing, though an earlier place may reach it."""
    found = sound(grad_out, weight, stride, padding, dilation, output_padding)
    for axis, rest in zip((2, 3), output_padding, strict=True):
        found.narrow(axis, found.shape[axis] - min(rest, found.shape[axis]), min(rest, found.shape[axis])).zero_()
    return found


VARIANTS = {
    "sound": Implementation(sound, "nothing is wrong with it"),
    "flipped": Implementation(flipped, "turns kernels round"),
    "first_phase": Implementation(first_phase, "computes one pixel per step"),
    "end_forgotten": Implementation(end_forgotten, "ends with the last place"),
}

CAUGHT_BY = {name: "accuracy" for name in VARIANTS if name != "sound"}
