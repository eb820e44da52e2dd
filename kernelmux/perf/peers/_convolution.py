"""Gradients of a convolution by torch's own backward, which is cuDNN on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kernelmux.registry.spec.sliding_windows import Pair

T = torch.Tensor


def backward(grad_out: T, x: T, weight: T, stride: Pair, padding: Pair, dilation: Pair, wanted: str) -> T:
    """The gradient of "x" or "weight", of which itself only the shape and the order in memory count."""
    mask = [wanted == "x", wanted == "weight", False]  # not of a bias
    grads = torch.ops.aten.convolution_backward(
        grad_out, x, weight, None, stride, padding, dilation, False, (0, 0), 1, mask
    )
    found: T = grads[mask.index(True)]
    return found


@contextmanager
def benchmarked() -> Iterator[None]:
    """cuDNN tries all of its algorithms in the first call of a shape, and keeps to the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
