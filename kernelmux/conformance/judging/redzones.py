"""Inputs with something to lose around them: NaN in their gaps and beside them."""

from __future__ import annotations

import torch

from kernelmux.candidate.allocations import Guarded, Strides, contiguous_strides, guarded
from kernelmux.conformance.inputs.trials import bits


def haloed(x: torch.Tensor, strides: Strides | None = None) -> Guarded:
    """The values of x, contiguous or with these strides (that overlap nowhere), with NaN around and between them."""
    made = guarded(x.shape, strides or contiguous_strides(x.shape), x.dtype, x)
    made.view.copy_(x)
    return made


def poison_left(x: torch.Tensor) -> torch.Tensor:
    """Which elements still have all bits set, as fresh poisoned memory has."""
    return bits(x) == (255 if x.element_size() == 1 else -1)
