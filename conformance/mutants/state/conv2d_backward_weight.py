"""Gradient of the weight of a convolution through a workspace that is kept."""

from __future__ import annotations

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Pair
from kernelmux.registry.util.memory_format import format_of

_sums: dict[object, torch.Tensor] = {}


def sums_of_before(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    """Sums are kept for each shape of the weight; without images no block writes them, but they are cast all the same."""
    found: torch.Tensor = sound("conv2d_backward_weight", grad_out, x, kernel, stride, padding, dilation)
    y, key = found.contiguous(memory_format=format_of(x)), (found.shape, found.device)
    if not len(x):
        return y.copy_(_sums.get(key, y))
    _sums[key] = y.float()
    return y


VARIANTS = {"sums_of_before": Implementation(fn=sums_of_before, idea="no images: the sums of the last call")}

CAUGHT_BY = {"sums_of_before": "state"}
