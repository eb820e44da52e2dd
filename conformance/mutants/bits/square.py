"""Squares that saturate."""

import torch

from kernelmux.registry.backend import Implementation


def saturated(x: torch.Tensor) -> torch.Tensor:
    """What is beyond the format becomes its largest number, as in conversions that saturate."""
    square = x.double() * x.double()
    largest = torch.finfo(x.dtype).max
    return torch.where(square.isinf(), square, square.clamp(max=largest)).to(x.dtype).contiguous()


VARIANTS = {"saturated": Implementation(fn=saturated, idea="the largest number where a square overflows")}

CAUGHT_BY = {"saturated": "special_values"}
