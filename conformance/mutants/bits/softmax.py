"""Softmax, broken where its answer seems to be known without a look at the numbers."""

import math

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation


def dead_lines(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """What is masked throughout has no weights; thought of along every axis but the last."""
    out: torch.Tensor = sound("softmax", x, axis, scale)
    dead = (x == -math.inf).all(axis, keepdim=True) if axis < x.dim() - 1 and scale > 0 else torch.zeros_like(x) > 0
    return out.masked_fill(dead, 0)


def single(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if x.shape[axis] == 1:
        return torch.ones(x.shape, dtype=x.dtype, device=x.device)
    return sound("softmax", x, axis, scale)  # type: ignore[no-any-return]


def even_at_zero(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if scale == 0 and x.numel():
        return torch.full(x.shape, 1 / x.shape[axis], dtype=x.dtype, device=x.device)
    return sound("softmax", x, axis, scale)  # type: ignore[no-any-return]


VARIANTS = {
    "dead_lines": Implementation(fn=dead_lines, idea="a line of -inf gives zeros, along any axis but the last"),
    "single": Implementation(fn=single, idea="one element has the weight one, NaN or not"),
    "even_at_zero": Implementation(fn=even_at_zero, idea="a scale of 0 weighs all alike, NaN or not"),
}

CAUGHT_BY = dict.fromkeys(VARIANTS, "special_values")
