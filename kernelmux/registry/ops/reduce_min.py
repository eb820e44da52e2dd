"""Smallest element over one axis or over all of them."""

from __future__ import annotations

import torch

from kernelmux.registry.ops._extremum import extremum
from kernelmux.registry.ops.reduce_max import reference as largest


def reference(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return -largest(-x, axis, keepdim)


SPEC = extremum(
    name="reduce_min",
    summary="Smallest element over one axis, or over all; NaN if there is one.",
    math="y = min of x over axis; of zeros of both signs either one",
    reference=reference,
)
