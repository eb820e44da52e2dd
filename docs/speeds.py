"""docs/images/speeds.svg: well-known operators beside the fastest other library, as bars, from the run on record.

Drawn twice: in one column, whose text is 11 pixels high on a phone, and in two for a wide page (speeds_wide.svg).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from kernelmux.docs import drawing, libraries
from kernelmux.docs.libraries import OURS, Line
from kernelmux.emulator import themes
from kernelmux.perf.report import wording
from kernelmux.perf.results import Results

COLUMN, GAP, TOP, PITCH, FOOT = 400, 40, 90, 41, 6  # pixels: a column, between two, above the rows, of a row, below
NAMES, NUMBERS = 186, 46  # room left and right of the bars
TEXT, THICK = 13, 14  # of letters and of a bar
LONGEST = 1.6  # a longer bar is drawn with a gap: its number says how long it is
TITLE = "Speed relative to the fastest other library"
STYLE = (
    f"text{{font-size:{TEXT}px}}.name{{font-weight:600}}.one{{stroke:{themes.INK}}}"
    f".gap{{stroke:{themes.PAPER};stroke-width:3}}"
) + "".join(f".{name}{{fill:{themes.BACKENDS[name]}}}" for name in OURS)


def picture(columns: int = 1) -> str:
    """The picture as SVG text, its rows in so many columns."""
    runs = libraries.kept()
    found = libraries.lines(runs[0]) if runs else []
    if not found:
        return drawing.picture(COLUMN, TOP, 0, "No run beside other libraries is on record yet", STYLE, ())
    rows = -(-len(found) // columns)
    width, height = columns * (COLUMN + GAP) - GAP, TOP + rows * PITCH + FOOT
    parts = [*_head(runs[0])]
    for i in range(columns):
        parts += _column(found[i * rows : (i + 1) * rows], i * (COLUMN + GAP))
    return drawing.picture(width, height, 0, TITLE, STYLE, parts)


def _head(run: Results) -> Iterator[str]:
    """Where it ran, and the key."""
    versions = run.machine.versions
    where = f"{run.machine.name}, torch {versions['torch']}, Triton {versions['triton']}"
    yield f'<text class="grey" x="0" y="45">{escape(where)}</text>'
    for i, (name, shown) in enumerate(OURS.items()):
        yield f'<rect class="{name}" x="{160 * i}" y="55" width="11" height="11"/>'
        yield f'<text x="{160 * i + 17}" y="65">kernelmux, {shown}</text>'


def _column(found: Sequence[Line], left: int) -> Iterator[str]:
    for i, line in enumerate(found):
        yield from _row(line, left, TOP + i * PITCH)
    one, end = left + NAMES + _length(1.0), TOP + len(found) * PITCH - 4
    yield f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="{TOP - 4}" y2="{end}"/>'
    yield f'<text class="grey" x="{one:.1f}" y="{TOP - 8}" text-anchor="middle">named library = 1</text>'


def _row(line: Line, left: int, y: int) -> Iterator[str]:
    name = line.op.replace("_with_", " + ").replace("_", " ")
    beside = f"{line.library} {wording.microseconds(line.other.median_us)} us"
    yield f'<text class="name" x="{left}" y="{y + 12}">{name}</text>'
    yield f'<text class="grey" x="{left}" y="{y + 28}">{escape(beside)}</text>'
    for i, backend in enumerate(OURS):
        if backend in line.ours:
            yield from _bar(line, backend, left, y + 1 + i * (THICK + 1))


def _bar(line: Line, backend: str, left: int, y: int) -> Iterator[str]:
    row, ahead, x = line.ours[backend], line.ahead(backend), left + NAMES
    place = f'x="{x}" y="{y}" width="{_length(ahead):.1f}" height="{THICK}"'
    told = escape(f"{row.name} {wording.microseconds(row.median_us)} us")
    yield f'<rect class="{backend}" {place}><title>{told}</title></rect>'
    if ahead > LONGEST:
        at = x + _length(LONGEST) - 10
        yield f'<line class="gap" x1="{at:.1f}" x2="{at + 4:.1f}" y1="{y + THICK}" y2="{y}"/>'
    yield f'<text x="{left + COLUMN}" y="{y + 11}" text-anchor="end">{ahead:.2f}x</text>'


def _length(ahead: float) -> float:
    return (COLUMN - NAMES - NUMBERS) * min(ahead, LONGEST) / LONGEST
