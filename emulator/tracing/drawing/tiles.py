"""Which block writes which part of an array, and where the drawn warp writes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernelmux.emulator.tracing.drawing.svg import FAINT, GREY, INK, PLAIN, Canvas
from kernelmux.emulator.tracing.owners import NOBODY, Owners

LARGEST, SMALLEST = 168.0, 72.0  # pixels of the longer and, if it is long and thin, of the shorter side
CELLS = 64  # resolution along a side
CAPTION = 34
PALETTE = ("#dbe7f3", "#eaf0dc", "#f3e6dc", "#e7e1f1", "#dcefee", "#f4e4ea")
DRAWN, WARP_INK = "#f7c948", "#243b53"


def size(owners: Owners) -> tuple[float, float]:
    """Width and height of the map with its caption."""
    width, height = _extent(owners.table(owners.block).shape)
    return max(LARGEST, width), height + CAPTION


def _extent(shape: tuple[int, ...]) -> tuple[float, float]:
    """Width and height of the map itself."""
    rows, columns = shape
    scale = LARGEST / max(rows, columns)
    return max(SMALLEST, columns * scale), max(SMALLEST, rows * scale)


def draw(canvas: Canvas, x: float, y: float, name: str, owners: Owners, block: int) -> None:
    """The array as a rectangle of the blocks' colours; `block` is the one whose warp is drawn."""
    table, mine = owners.table(owners.block), owners.table(owners.drawn)
    shape = "x".join(map(str, owners.array.shape)) or "one element"
    canvas.text(x, y + 12, f"{name}, {shape}", 12, INK, bold=True)
    canvas.text(x, y + 26, "blocks and what they write", 10.5, GREY)
    width, height = _extent(table.shape)
    top = y + CAPTION
    small, warp = _reduced(table), _reduced(mine)
    across, down = width / small.shape[1], height / small.shape[0]
    for r, c, h, w, owner in _rectangles(small):
        fill = "#f5f6f7" if owner == NOBODY else DRAWN if owner == block else PALETTE[owner % len(PALETTE)]
        opacity = 0.45 if owner == block else 1.0
        tip = f"block {owner}" if owner != NOBODY else "written by nobody"
        canvas.rect(
            x + c * across, top + r * down, w * across, h * down, fill, "#ffffff", title=tip, opacity=opacity, thick=0.6
        )
    for r, c, h, w, on in _rectangles(warp):
        if on:
            canvas.rect(x + c * across, top + r * down, w * across, h * down, WARP_INK)
    canvas.rect(x, top, width, height, "none", PLAIN.fill, thick=0.8)
    _numbers(canvas, x, top, across, down, small, block)


def _reduced(table: np.ndarray) -> np.ndarray:
    """At most `CELLS` rows and columns: the first element of each part; whether any is set, of booleans."""
    rows = np.linspace(0, table.shape[0], min(CELLS, table.shape[0]) + 1).astype(int)
    columns = np.linspace(0, table.shape[1], min(CELLS, table.shape[1]) + 1).astype(int)
    if table.dtype == bool:
        return np.array(np.logical_or.reduceat(np.logical_or.reduceat(table, rows[:-1], 0), columns[:-1], 1))
    return np.array(table[np.ix_(rows[:-1], columns[:-1])])


def _rectangles(table: np.ndarray) -> Iterator[tuple[int, int, int, int, int]]:
    """Row, column, height, width and value of rectangles of one value that cover a table."""
    left = np.ones(table.shape, bool)
    for r, c in np.ndindex(*table.shape):
        if not left[r, c]:
            continue
        value, w, h = table[r, c], 1, 1
        while c + w < table.shape[1] and table[r, c + w] == value and left[r, c + w]:
            w += 1
        while r + h < table.shape[0] and (table[r + h, c : c + w] == value).all() and left[r + h, c : c + w].all():
            h += 1
        left[r : r + h, c : c + w] = False
        yield r, c, h, w, int(value)


def _numbers(canvas: Canvas, x: float, y: float, across: float, down: float, table: np.ndarray, block: int) -> None:
    """The block's number in the middle of its part, where there is room."""
    for owner in np.unique(table[table != NOBODY]).tolist():
        r, c = np.nonzero(table == owner)
        width, height = (np.ptp(c) + 1) * across, (np.ptp(r) + 1) * down
        if width >= 26 and height >= 14:
            middle, centre = x + (c.mean() + 0.5) * across, y + (r.mean() + 0.5) * down
            if owner == block:
                canvas.rect(middle - 11, centre - 8, 22, 16, "#ffffff", radius=8, opacity=0.9)
            colour = INK if owner == block else FAINT
            canvas.text(middle, centre + 4, str(owner), 11, colour, "middle", bold=True)
