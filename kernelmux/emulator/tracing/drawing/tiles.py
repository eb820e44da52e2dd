"""Which block writes which part of an array, and where the drawn warp writes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernelmux.emulator.texts import counted
from kernelmux.emulator.tracing.drawing.svg import PLAIN, Canvas
from kernelmux.emulator.tracing.drawing.themes import FAINT, GREY, INK
from kernelmux.emulator.tracing.owners import NOT_WRITTEN, Owners

LARGEST, SMALLEST = 168.0, 72.0  # pixels of the longer and, if it is long and thin, of the shorter side
CELLS, WHOLE = 96, 128  # resolution along a side; longer sides are not shown whole
CAPTION = 34
WIDE = 4  # pixels from which on a part has an edge
PALETTE = ("#dbe7f3", "#eaf0dc", "#f3e6dc", "#e7e1f1", "#dcefee", "#f4e4ea")
DRAWN, WARP_INK = "#f7c948", "#243b53"


class BlockMap:
    """What is shown of an array: all of it, or of a large one the drawn block and its neighbours."""

    def __init__(self, name: str, owners: Owners, block: int) -> None:
        self.block = block
        owner = owners.table(owners.block)
        rows, columns = (_window(owner == block, axis) for axis in (0, 1))
        self.owner, self.drawn = owner[rows, columns], owners.table(owners.drawn)[rows, columns]
        self.title = f"{name}, {'x'.join(map(str, owners.array.shape)) or 'one element'}"
        whole = self.owner.shape == owner.shape
        writers = len(np.unique(self.owner[self.owner != NOT_WRITTEN]))
        every = f"{counted(writers, 'blocks')}: which block writes what"
        self.caption = every if whole else f"{_range(rows)} by {_range(columns)}"
        scale = LARGEST / max(self.owner.shape)
        self.height, self.width = (max(SMALLEST, n * scale) for n in self.owner.shape)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height with the caption."""
        return max(LARGEST, self.width), self.height + CAPTION


def _window(mine: np.ndarray, axis: int) -> slice:
    """The part of an axis that is shown: the drawn block, and as much again on both sides."""
    extent = mine.shape[axis]
    where = np.flatnonzero(mine.any(axis=1 - axis))
    if extent <= WHOLE or not len(where):
        return slice(0, extent)
    first, last = int(where[0]), int(where[-1]) + 1
    return slice(max(0, 2 * first - last), min(extent, 2 * last - first))


def _range(part: slice) -> str:
    return f"{part.start:,} to {part.stop - 1:,}"


def draw(canvas: Canvas, x: float, y: float, shown: BlockMap) -> None:
    """The array as a rectangle of the blocks' colours; dark is what the drawn warp writes."""
    canvas.part()
    canvas.text(x, y + 12, shown.title, 12, INK, bold=True)
    canvas.text(x, y + 26, shown.caption, 10.5, GREY)
    top, small = y + CAPTION, _reduced(shown.owner)
    across, down = shown.width / small.shape[1], shown.height / small.shape[0]
    for r, c, h, w, owner in _rectangles(small):
        place = (x + c * across, top + r * down, w * across, h * down)
        mine = owner == shown.block
        fill = "#f5f6f7" if owner == NOT_WRITTEN else DRAWN if mine else PALETTE[owner % len(PALETTE)]
        tip = f"block {owner}" if owner != NOT_WRITTEN else "not written"
        edge = "#ffffff" if min(place[2:]) >= WIDE else "none"
        canvas.rect(*place, fill, edge, title=tip, opacity=0.45 if mine else 1.0, thick=0.6)
    for r, c, h, w, on in _rectangles(_reduced(shown.drawn)):
        if on:
            canvas.rect(x + c * across, top + r * down, w * across, h * down, WARP_INK)
    canvas.rect(x, top, shown.width, shown.height, "none", PLAIN.fill, thick=0.8)
    _numbers(canvas, x, top, across, down, small, shown.block)


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
    """The block's number in the middle of its part, where there is room and the part is all its own."""
    for owner in np.unique(table[table != NOT_WRITTEN]).tolist():
        r, c = np.nonzero(table == owner)
        width, height = (np.ptp(c) + 1) * across, (np.ptp(r) + 1) * down
        whole = len(r) > 0.6 * (np.ptp(c) + 1) * (np.ptp(r) + 1)
        if width >= 26 and height >= 14 and whole:
            middle, centre = x + (c.mean() + 0.5) * across, y + (r.mean() + 0.5) * down
            if owner == block:
                canvas.rect(middle - 11, centre - 8, 22, 16, "#ffffff", radius=8, opacity=0.9)
            colour = INK if owner == block else FAINT
            canvas.text(middle, centre + 4, str(owner), 11, colour, "middle", bold=True)
