"""Elementwise sum, broken in single bits."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation

SOURCE = Path(__file__).with_suffix(".cu")
BLOCK = 128
LAYOUT = {"x": "contiguous", "y": "contiguous"}


def turned_round(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (y.double() + x.double()).to(x.dtype).contiguous()


def flushing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        launch(SOURCE, "add_flushing", -(-x.numel() // BLOCK), BLOCK, (x, y, out, np.int32(x.numel())), x.dtype)
    return out


def from_zero(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    from kernelmux.conformance.mutants.bits import _kernels

    return _triton.flat(_kernels.add_from_zero, x, y)


def saturating(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    largest = torch.finfo(x.dtype).max
    total = x.double() + y.double()
    finite = x.isfinite() & y.isfinite()
    return torch.where(finite, total.clamp(-largest, largest), total).to(x.dtype).contiguous()


def away_from_zero(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """fp32 made bf16 by adding half a unit to its bits: right but for ties."""
    if x.dtype != torch.bfloat16:
        return turned_round(x, y)
    total = x.float() + y.float()
    near = ((total.contiguous().view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)
    return torch.where(total.isfinite(), near, total).to(x.dtype)


def bounded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As above, for sums of two different numbers."""
    return torch.where(x == y, turned_round(x, y), saturating(x, y)).contiguous()


VARIANTS = {
    "turned_round": Implementation(fn=turned_round, idea="y + x, by way of float64: as right as any"),
    "flushing": Implementation(fn=flushing, idea="compiled to flush subnormal numbers", layout=LAYOUT),
    "from_zero": Implementation(fn=from_zero, idea="adds both to an accumulator that starts at zero"),
    "saturating": Implementation(fn=saturating, idea="what overflows becomes the largest number"),
    "away_from_zero": Implementation(fn=away_from_zero, idea="rounds ties to bf16 away from zero"),
    "bounded": Implementation(fn=bounded, idea="what overflows becomes the largest number, unless x = y"),
}

CAUGHT_BY = {name: "special_values" for name in VARIANTS if name != "turned_round"}
