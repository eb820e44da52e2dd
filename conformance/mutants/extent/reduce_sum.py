"""Sums of rows that are numbered with 16 bits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

TILE = 32768
SOURCE = Path(__file__).with_name("rows.cu")


def short_rows(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    if axis is None or not x.numel():
        result: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
        return result
    rows = x.movedim(axis, -1).contiguous()
    total = torch.empty(rows.shape[:-1], device=x.device, dtype=torch.float32)
    launch(SOURCE, "sum_short", total.numel(), 32, (rows, total, np.int32(rows.shape[-1])), x.dtype)
    return (total.unsqueeze(axis) if keepdim else total).to(x.dtype)


def whole_tiles(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """What is left behind the last whole tile of a long axis is forgotten."""
    if axis is not None and x.shape[axis] > TILE:
        x = x.narrow(axis, 0, x.shape[axis] // TILE * TILE)
    result: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
    return result


Reduce = Callable[[torch.Tensor, int | None, bool], torch.Tensor]
VARIANTS = {
    "short_rows": Implementation(fn=short_rows, idea="numbers of rows are unsigned shorts"),
    "whole_tiles": Implementation(fn=whole_tiles, idea="of long sums only whole tiles of 32,768 terms are added"),
}

CAUGHT_BY = {"whole_tiles": "extent", "short_rows": "extent"}
