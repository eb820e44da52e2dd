"""One launch: figures, what they mean, the block of each tile of the output, the source beside one warp's accesses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernelmux.emulator.texts import bytes_text, number
from kernelmux.emulator.tracing.drawing import excerpt, requests, tiles
from kernelmux.emulator.tracing.drawing.svg import GREEN, MONO_WIDTH, PLAIN, TINTS, YELLOW, Canvas, Tint, clipped
from kernelmux.emulator.tracing.drawing.themes import FAINT, GREY, INK, RULE
from kernelmux.emulator.tracing.reading import FINE, excess, readings

MARGIN, WIDTH = 28.0, 1220.0
CODE, CODE_WIDTH, CODE_SIZE, CODE_ROW = MARGIN, 408.0, 11.5, 17.0
GUTTER = 30.0  # line numbers
PANELS = WIDTH - MARGIN - requests.WIDTH
BETWEEN = 14.0  # panels of one line
OCCUPIED = 0.5  # share of the warps that a multiprocessor can hold: good from here on
WORST = ("uncoalesced", "conflicts", "cached", "coalesced", "conflict-free", "plain")


def draw(canvas: Canvas, y: float, launch: Any, title: str, context: bool = True) -> float:
    """Draws a launch from `y` on; returns where it ends. context: with the neighbours of the lines that matter."""
    canvas.part()
    bottom = _head(canvas, y, launch, title)
    canvas.line(MARGIN, bottom, WIDTH - MARGIN, bottom, RULE)
    return _body(canvas, bottom + 16, launch, context)


# --- the head -------------------------------------------------------------------------------------------------


def _head(canvas: Canvas, y: float, launch: Any, title: str) -> float:
    canvas.text(MARGIN, y + 18, launch.kernel, 18, INK, bold=True)
    if title:
        canvas.text(MARGIN, y + 38, title, 11.5, GREY)
        y += 17
    canvas.text(MARGIN, y + 38, "   ·   ".join(_facts(launch)), 11.5, GREY)
    top = y - 17 if title else y
    x, end = WIDTH - MARGIN, 0.0
    for name, owners in list(launch.owners.items())[:2]:
        if owners.known and (owners.block >= 0).any():
            shown = tiles.BlockMap(name, owners, launch.drawn.block)
            x -= shown.size[0]
            tiles.draw(canvas, x, top, shown)
            x, end = x - 24, max(end, top + shown.size[1])
    bottom = _figures(canvas, MARGIN, y + 56, x, launch)
    return max(end, _sentences(canvas, MARGIN, bottom + 18, launch)) + 14


def _facts(launch: Any) -> Iterator[str]:
    yield launch.file
    yield f"grid {extent(launch.grid)}, block {extent(launch.block)}"
    yield f"drawn: warp {launch.drawn.warp} of block {launch.drawn.block}"


def extent(triple: tuple[int, int, int]) -> str:
    """A grid or a block, without ones at its end."""
    sizes = list(triple)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return "x".join(map(str, sizes))


def _figures(canvas: Canvas, left: float, y: float, right: float, launch: Any) -> float:
    """The figures side by side, in further rows where they would reach `right`; returns where they end."""
    x = left
    for big, small, least, tint in _numbers(launch):
        width = max(148, 24 + 5.9 * len(small), 34 + 13.2 * len(big) + 6.2 * len(least))
        if x + width > right:
            x, y = left, y + 68
        canvas.rect(x, y, width, 58, tint.pale, radius=5)
        canvas.text(x + 12, y + 29, big, 22, tint.text, bold=True)
        canvas.text(x + 22 + 13.2 * len(big), y + 29, least, 11, tint.text)
        canvas.text(x + 12, y + 47, small, 10.5, tint.text)
        x += width + 12
    return y + 58


def _numbers(launch: Any) -> Iterator[tuple[str, str, str, Tint]]:
    """Number, what it is, the least possible, colour."""
    for name, operations in (("load", ("load", "copy")), ("store", ("store",)), ("atomic", ("atomic", "reduction"))):
        traffic = [t for t in launch.traffic if t.space == "global" and t.operation in operations]
        if traffic:
            requests_, cost, least = (sum(getattr(t, n) for t in traffic) for n in ("requests", "sectors", "least"))
            note = f"{number(least / requests_)} would do" if cost > least else ""
            yield number(cost / requests_), f"sectors per {name}", note, TINTS[worst(traffic)]
    shared = [t for t in launch.traffic if t.space == "shared"]
    if shared:
        yield f"{sum(t.conflicts for t in shared):,}", "bank conflicts", "", TINTS[worst(shared)]
    if copies := launch.total("requests", "bulk"):
        moved = bytes_text(launch.total("moved", "bulk"))
        yield f"{copies:,}", f"TMA {'copies' if copies > 1 else 'copy'}, {moved}", "", PLAIN
    divergent, branches = (sum(getattr(line, n) for line in launch.lines) for n in ("divergent", "branches"))
    yield f"{divergent:,}", "divergent branches", f"of {branches:,}", PLAIN if divergent else GREEN
    if (fits := launch.occupancy()) is not None:
        yield (
            f"{fits.fraction:.0%}",
            f"occupancy, by {fits.limited_by}",
            "",
            GREEN if fits.fraction >= OCCUPIED else PLAIN,
        )


def worst(traffic: list[Any]) -> str:
    """The verdict that a reader has to see."""
    verdicts: list[str] = [t.verdict for t in traffic]
    return min(verdicts, key=WORST.index)


def _sentences(canvas: Canvas, x: float, y: float, launch: Any) -> float:
    wasteful = [r for r in readings(launch) if r.wasted][:3]
    more = excess(launch)
    if not wasteful and not more:
        canvas.text(x, y + 8, f"✓ {FINE}", 12.5, GREEN.text)
        return y + 12
    lines = [(f"{r.place(launch.file)}{r.text}", TINTS[r.verdict]) for r in wasteful] or [(FINE, PLAIN)]
    for line, tint in [*lines, (more, YELLOW)] if more else lines:
        for i, text in enumerate(wrapped(line, 112)):
            canvas.text(x + 12 * (i > 0), y + 8, text, 12.5, tint.text)
            y += 18
    return y


def wrapped(text: str, most: int) -> list[str]:
    """Text in lines of at most so many letters."""
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) + 1 > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


# --- the source, and the accesses beside it -------------------------------------------------------------------


def _body(canvas: Canvas, y: float, launch: Any, context: bool) -> float:
    for row in excerpt.rows(launch, excerpt.CONTEXT if context else 0):
        panel = y + 1
        y = bottom = y + _code(canvas, y, row)
        for traffic in row.traffic:
            requests.draw(canvas, PANELS, panel, traffic)
            panel += requests.height(traffic) + BETWEEN
            bottom = max(bottom, panel)
        y = bottom
    return y + 12


def _code(canvas: Canvas, y: float, row: excerpt.ExcerptLine) -> float:
    """A line, over several rows if it accesses memory and is long; returns its height."""
    canvas.part()
    if row.number is None:
        canvas.text(CODE + GUTTER, y + 12, row.text, CODE_SIZE, FAINT)
        return CODE_ROW
    most = int((CODE_WIDTH - GUTTER - 4) / (CODE_SIZE * MONO_WIDTH))
    texts = _folded(row.text, most) if row.traffic else [clipped(row.text, CODE_WIDTH - GUTTER - 4, CODE_SIZE)]
    height = CODE_ROW * len(texts)
    if row.traffic:
        tint = TINTS[worst(row.traffic)]
        canvas.rect(CODE - 4, y - 1, CODE_WIDTH + 4, height, tint.pale, radius=3)
        canvas.rect(CODE - 4, y - 1, 3, height, tint.fill)
    canvas.text(CODE + GUTTER - 8, y + 12, str(row.number), CODE_SIZE - 1, FAINT, "end", mono=True)
    for i, text in enumerate(texts):
        colour = INK if row.traffic else GREY
        canvas.text(CODE + GUTTER, y + 12 + i * CODE_ROW, text, CODE_SIZE, colour, mono=True)
    return height


def _folded(text: str, most: int) -> list[str]:
    """A line of code in pieces, broken at spaces and after brackets, indented from the second on."""
    indent = len(text) - len(text.lstrip()) + 4
    pieces: list[str] = []
    while len(text) > most and len(pieces) < 5:
        cut = max(text.rfind(" ", indent + 1, most + 1), text.rfind("(", indent + 1, most) + 1)
        cut = cut if cut > indent else most
        pieces.append(text[:cut])
        text = " " * indent + text[cut:].lstrip()
    return [*pieces, text]
