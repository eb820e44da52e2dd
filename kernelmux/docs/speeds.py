"""docs/images/speeds.svg: well-known operators beside the fastest other library, as bars, from the run on record.

Drawn twice: in one column, whose text is 11 pixels high on a phone, and in two for a wide page (speeds_wide.svg).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelmux.docs import libraries
from kernelmux.docs.libraries import OURS, LibraryRow
from kernelmux.perf.pictures import figures
from kernelmux.perf.pictures.themes import BACKENDS, GREY, INK, PAPER
from kernelmux.perf.wording import wording

COLUMN, GAP, TOP, PITCH, FOOT = 400, 40, 90, 41, 6  # pixels: a column, between two, above the rows, of a row, below
NAMES, NUMBERS = 190, 46  # room left and right of the bars
BARS = COLUMN - NAMES - NUMBERS
TEXT, HEADING = 9.75, 11.25  # points: 13 and 15 pixels
THICK = 0.36  # a bar, in rows
LONGEST = 1.6  # a longer bar is drawn with a gap: its number says how long it is
TITLE = "Speed relative to the fastest other library"


def picture(columns: int = 1) -> str:
    """The picture as SVG text, its rows in so many columns."""
    runs = libraries.kept()
    found = libraries.lines(runs[0]) if runs else []
    rows = -(-len(found) // columns)
    width, height = columns * (COLUMN + GAP) - GAP, TOP + rows * PITCH + FOOT
    with figures.blank(width / 96, height / 96, size=TEXT) as figure:
        figure.set_layout_engine("none")
        title = TITLE if found else "No run beside other libraries is on record yet"
        figure.text(0, 1 - 26 / height, title, fontsize=HEADING, fontweight="bold")
        for i in range(columns if found else 0):
            place = (i * (COLUMN + GAP) + NAMES) / width, FOOT / height, BARS / width, rows * PITCH / height
            column(figure.add_axes(place), found[i * rows : (i + 1) * rows], rows)
        if found:
            versions = runs[0].machine.versions
            where = f"{runs[0].machine.name}, torch {versions['torch']}, Triton {versions['triton']}"
            figure.text(0, 1 - 45 / height, where, color=GREY)
            figure.legend(
                *figure.axes[0].get_legend_handles_labels(),
                loc="upper left",
                bbox_to_anchor=(0, 1 - 54 / height),
                ncols=len(OURS),
                frameon=False,
                borderpad=0,
                borderaxespad=0,
                handlelength=0.9,
                handleheight=0.9,
                handletextpad=0.5,
            )
        return figures.svg(figure)


def column(axes: Any, found: Sequence[LibraryRow], rows: int) -> None:
    """Bars of some operators, a row for each, where there is room for so many rows."""
    axes.set(xlim=(0, LONGEST), ylim=(rows - 0.5, -0.5))
    axes.axis("off")
    for i, (backend, shown) in enumerate(OURS.items()):
        has = [(row + (i - 0.5) * THICK, line) for row, line in enumerate(found) if backend in line.ours]
        at, ahead = [y for y, _ in has], [line.ahead(backend) for _, line in has]
        axes.barh(at, ahead, 0.95 * THICK, color=BACKENDS[backend], label=f"kernelmux, {shown}")
        for y, speed in zip(at, ahead, strict=True):
            _beside(axes, 1 + NUMBERS / BARS, y, f"{speed:.2f}x", va="center_baseline", ha="right")
            if speed > LONGEST:
                axes.plot([LONGEST - 0.1, LONGEST - 0.06], [y + THICK / 2, y - THICK / 2], color=PAPER, linewidth=2.5)
    for row, line in enumerate(found):
        name = line.op.replace("_with_", " + ").replace("_", " ")
        _beside(axes, -NAMES / BARS, row - 0.05, name, fontweight="bold")
        other = f"{line.library} {wording.microseconds(line.other.median_us)} us"
        _beside(axes, -NAMES / BARS, row + 0.34, other, color=GREY)
    axes.plot([1, 1], [-0.5, len(found) - 0.5], color=INK, linewidth=1)
    axes.text(1, -0.6, "named library = 1", color=GREY, ha="center")


def _beside(axes: Any, x: float, y: float, text: str, **how: Any) -> None:
    """Text outside of the bars; x: in their room's width, y: in rows."""
    axes.text(x, y, text, transform=axes.get_yaxis_transform(), **how)
