"""Where in an output the error is: error / bound over its last two axes, as SVG with a cell per block of elements."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch

ROWS, COLUMNS = 64, 128  # cells at most
# What each level of a cell means, and up to which error / bound it goes. The colours are in page.html.
LEVELS = (
    ("no error", 0.0),
    ("up to 1/4 of the bound", 0.25),
    ("up to 1/2", 0.5),
    ("up to all of it", 1.0),
    ("up to 10 times", 10.0),
    ("up to 1000 times", 1e3),
    ("more", torch.finfo(torch.float64).max),
    ("NaN or infinity", torch.inf),
)


@dataclass(frozen=True)
class ErrorMap:
    """paths: of each level that occurs, what SVG draws as strokes of width 1. rows, columns: cells.

    each: elements per cell, down and across. over: which axes, in words.
    """

    paths: dict[int, str]
    rows: int
    columns: int
    each: tuple[int, int]
    over: str


def draw(got: torch.Tensor, want: torch.Tensor, limit: torch.Tensor) -> ErrorMap | None:
    """The map of an output; None for one without elements. Of the axes before the last two the worst counts."""
    if not got.numel():
        return None
    share = _share(got.double(), want, limit)
    plane = share.reshape(-1, *_last_two(share)).amax(0)
    each = (-(-plane.shape[0] // ROWS), -(-plane.shape[1] // COLUMNS))
    cells = _blocks(plane, each)
    before = f", the worst of {share.numel() // plane.numel()}" if share.numel() > plane.numel() else ""
    names = f"axis {got.dim() - 2} (down), axis {got.dim() - 1} (across)" if got.dim() > 1 else "axis 0 (across)"
    return ErrorMap(_paths(levels(cells)), cells.shape[0], cells.shape[1], each, names + before)


def levels(cells: torch.Tensor) -> torch.Tensor:
    """Which of `LEVELS` each cell has."""
    return torch.bucketize(cells, torch.tensor([most for _, most in LEVELS], dtype=cells.dtype))


def _share(got: torch.Tensor, want: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """error / bound; infinite where one of the two is not finite and they differ."""
    same = (got == want) | (got.isnan() & want.isnan())
    found = (got - want).abs() / limit
    return torch.where(same, 0.0, found.nan_to_num(nan=torch.inf, posinf=torch.inf))


def _last_two(x: torch.Tensor) -> tuple[int, int]:
    return (x.shape[-2], x.shape[-1]) if x.dim() > 1 else (1, x.numel())


def _blocks(plane: torch.Tensor, each: tuple[int, int]) -> torch.Tensor:
    """The largest share of each block of elements."""
    down, across = (-n % e for n, e in zip(plane.shape, each, strict=True))
    padded = torch.nn.functional.pad(plane, (0, across, 0, down))
    rows, columns = padded.shape[0] // each[0], padded.shape[1] // each[1]
    return padded.reshape(rows, each[0], columns, each[1]).amax((1, 3))


def _paths(found: torch.Tensor) -> dict[int, str]:
    """Of each level that occurs a path: a stroke for each run of such cells in a row."""
    paths: dict[int, str] = {}
    for y, row in enumerate(found.tolist()):
        x = 0
        for level, run in groupby(row):
            length = len(list(run))
            paths[level] = f"{paths.get(level, '')}M{x} {y}.5h{length}"
            x += length
    return paths
