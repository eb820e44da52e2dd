"""Softmax whose rows are counted, or found, with too few bits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation

SOURCE = Path(__file__).with_name("rows.cu")
MOST = 65535
Launch = Callable[[torch.Tensor, torch.Tensor, float], None]


def _softmax(start: Launch) -> Callable[[torch.Tensor, int, float], torch.Tensor]:
    """An operator from a launch on matrices, [rows, n]."""

    def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
        moved = x.movedim(axis, -1).contiguous()
        y = torch.empty(moved.shape, dtype=x.dtype, device=x.device)
        if x.numel():
            start(moved.view(-1, moved.shape[-1]), y, scale)
        return y.movedim(-1, axis).contiguous()

    return softmax


def _grid_y(x: torch.Tensor, y: torch.Tensor, scale: float) -> None:
    launch(SOURCE, "softmax_y", (1, len(x)), 32, (x, y, np.int32(x.shape[1]), np.float32(scale)), x.dtype)


def _clamped(x: torch.Tensor, y: torch.Tensor, scale: float) -> None:
    launch(SOURCE, "softmax_y", (1, min(len(x), MOST)), 32, (x, y, np.int32(x.shape[1]), np.float32(scale)), x.dtype)


def _int_rows(x: torch.Tensor, y: torch.Tensor, scale: float) -> None:
    launch(SOURCE, "softmax_int", len(x), 32, (x, y, np.int32(x.shape[1]), np.float32(scale)), x.dtype)


def _walking(x: torch.Tensor, y: torch.Tensor, scale: float) -> None:
    args = (x, y, np.int32(len(x)), np.int32(x.shape[1]), np.float32(scale))
    launch(SOURCE, "softmax_walking", (1, min(len(x), MOST)), 32, args, x.dtype)


VARIANTS = {
    "grid_y": Implementation(fn=_softmax(_grid_y), idea="a row per block of grid.y"),
    "clamped": Implementation(fn=_softmax(_clamped), idea="grid.y is clamped, and rows are forgotten"),
    "int_rows": Implementation(fn=_softmax(_int_rows), idea="the offset of a row is an int"),
    "walking": Implementation(fn=_softmax(_walking), idea="the blocks of a clamped grid.y walk over the rows"),
}

CAUGHT_BY = {"grid_y": "extent", "clamped": "extent", "int_rows": "offsets"}
