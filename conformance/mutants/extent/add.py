"""Elementwise sum by rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation

SOURCE = Path(__file__).with_name("rows.cu")


def _add(entry: str, in_y: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if x.numel():
            rows = len(x) if x.dim() > 1 else 1
            grid = (1, rows) if in_y else rows
            launch(SOURCE, entry, grid, 32, (x, y, z, np.int32(x.numel() // rows)), x.dtype)
        return z

    return add


PACKED = {"x": "contiguous", "y": "contiguous"}
VARIANTS = {
    "int_offset": Implementation(fn=_add("add_int", False), idea="the offset of a row is an int", layout=PACKED),
    "grid_y": Implementation(fn=_add("add_y", True), idea="a row per block of grid.y", layout=PACKED),
}

CAUGHT_BY = {"int_offset": "offsets", "grid_y": "extent"}
