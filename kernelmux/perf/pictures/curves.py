"""A sweep as a picture and as a table: time and rate over a length, a line for each backend, below what the machine can do.

The SVG follows the reader's light or dark setting by itself; of the PNG there is one for each.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kernelmux.perf import peers
from kernelmux.perf.pictures import figures, themes
from kernelmux.perf.pictures.themes import GREY, PAPER
from kernelmux.perf.planning.plan import BASELINE, PLAIN
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.row_result import Timed
from kernelmux.perf.sweeps import curve as measured
from kernelmux.perf.sweeps.curve import Curve
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.columns import Columns

FORMATS = ("svg", "png")
PICTURED = ("attention", "conv2d", "matmul", "reduce_sum", "softmax", "transpose")  # whose pictures the pages show
SIZE, DPI = (10.4, 4.4), 130
WIDEST = 100  # letters of a line of the title
TENTH = 0.1  # rates below so many TFLOP/s are given in GFLOP/s
*MORE, COMPILE = themes.MORE  # of other lines, and of torch.compile
OWN = themes.BACKENDS | {f"{peers.NAME}/torch_compile": COMPILE}
MARKERS = "osD^vP*X"
TORCH = (f"{BASELINE}/{PLAIN}", f"{BASELINE}/eager")  # older records have the second name


@dataclass(frozen=True)
class Rate:
    """The unit of the rates of a sweep: that of what binds its longest point. work: of a row, per microsecond."""

    unit: str
    by_flops: bool
    scale: float

    def of(self, row: Timed, us: float) -> float:
        """What a call that takes so many microseconds reaches."""
        return (row.flops if self.by_flops else row.bytes) / us * self.scale


def rate_of(curve: Curve) -> Rate:
    longest = curve.points[-1].row
    point = longest.point
    if not (point.floor_by == "compute" if point else longest.unit != "fp32" or longest.flops > 32 * longest.bytes):
        return Rate("GB/s", False, 1e-3)
    best = max(point.row.flops / point.row.median_us for point in curve.points) * 1e-6
    return Rate("TFLOP/s", True, 1e-6) if best > TENTH else Rate("GFLOP/s", True, 1e-3)


def label(line: str) -> str:
    """A line for a reader."""
    backend, _, variant = line.partition("/")
    if backend == peers.NAME:
        return variant.replace("torch_compile", "torch.compile")
    return "torch" if line in TORCH else line


def colour_of(lines: Iterable[str]) -> dict[str, str]:
    """The colour of each line: a backend has its own, its further variants and other libraries one of the rest."""
    found: dict[str, str] = {}
    for line in lines:
        own = OWN.get(line) or OWN.get(line.partition("/")[0], "")
        rest = [name for name in MORE if name not in found.values()] or [MORE[len(found) % len(MORE)]]
        found[line] = own if own and own not in found.values() else rest[0]
    return found


def draw(curve: Curve, path: Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """Write the picture as <path>.svg, and as <path>.png with <path>-dark.png; returns what was written."""
    written = []
    if "svg" in formats:
        written.append(path.with_name(f"{path.name}.svg"))
        output_files.write(written[-1], svg(curve))
    for ground, end in ((figures.LIGHT, ""), (themes.DARK, "-dark")) if "png" in formats else ():
        written.append(path.with_name(f"{path.name}{end}.png"))
        with _drawn(curve, ground) as figure:
            output_files.write(written[-1], figures.png(figure, DPI))
    return written


def svg(curve: Curve) -> str:
    """The picture as an SVG document."""
    with _drawn(curve, figures.LIGHT) as figure:
        return figures.svg(figure)


@contextmanager
def _drawn(curve: Curve, ground: dict[str, str]) -> Iterator[Any]:
    with figures.blank(*SIZE, ground) as figure:
        left, right = figure.subplots(1, 2)
        _times(left, curve, ground)
        _rates(right, curve, ground)
        figure.suptitle(textwrap.fill(curve.title, WIDEST), fontsize=11, fontweight="bold")
        figure.supxlabel(f"{wording.where(curve.machine)}, {curve.date}", fontsize=7.5, color=ground[GREY])
        left.legend(loc="upper left", frameon=False, fontsize=8.5)
        yield figure


def _times(axes: Any, curve: Curve, ground: dict[str, str]) -> None:
    _plot(
        axes, curve, ground, {line: {n: row.median_us for n, row in rows.items()} for line, rows in curve.lines.items()}
    )
    if floor := _floor(curve):
        axes.plot(
            list(floor),
            list(floor.values()),
            color=ground[GREY],
            linestyle="--",
            linewidth=1,
            label="least, by the measured ceilings",
        )
    axes.set(yscale="log", ylabel="time, µs")


def _rates(axes: Any, curve: Curve, ground: dict[str, str]) -> None:
    rate = rate_of(curve)
    rates = {line: {n: rate.of(row, row.median_us) for n, row in rows.items()} for line, rows in curve.lines.items()}
    _plot(axes, curve, ground, rates)
    if floor := _floor(curve):
        by_length = {point.length: point.row for point in curve.points}
        roof = [rate.of(by_length[n], us) for n, us in floor.items()]
        axes.plot(list(floor), roof, color=ground[GREY], linestyle="--", linewidth=1)
    axes.set(ylabel=f"rate, {rate.unit}")
    axes.set_ylim(bottom=0)


def _floor(curve: Curve) -> dict[int, float]:
    """The least time of each length, where ceilings were measured."""
    return {point.length: point.row.point.floor_us for point in curve.points if point.row.point}


def _plot(axes: Any, curve: Curve, ground: dict[str, str], values: dict[str, dict[int, float]]) -> None:
    """A line for each, with filled marks at powers of two and hollow ones elsewhere."""
    colours, stale = colour_of(values), curve.stale
    for line, mark in zip(values, MARKERS * len(values), strict=False):
        x, y = list(values[line]), list(values[line].values())
        colour = ground[colours[line]]
        fill = [colour if n & (n - 1) == 0 else ground[PAPER] for n in x]
        name = label(line) + (" (stale)" if line in stale else "")
        axes.plot(x, y, color=colour, linewidth=1.5, marker=mark, markersize=3.5, label=name)
        axes.scatter(x, y, s=16, marker=mark, c=fill, edgecolors=colour, linewidths=1, zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_xlabel(curve.axis)
    ticks = _ticks(curve.lengths)
    axes.set_xticks(ticks, [_short(n) for n in ticks])
    axes.minorticks_off()
    axes.grid(True, linewidth=0.6)


def _ticks(lengths: tuple[int, ...]) -> list[int]:
    """Powers of two, at most ten; the lengths themselves where there are no two of them."""
    powers = [n for n in lengths if n & (n - 1) == 0]
    chosen = powers if len(powers) > 1 else list(lengths)
    return chosen[:: -(-len(chosen) // 10)]


def _short(length: int) -> str:
    """65536 as it is, 67108864 as 64 Mi."""
    return f"{length >> 20} Mi" if length >= 1 << 20 and not length % (1 << 20) else str(length)


def show(console: Console, curve: Curve) -> None:
    """Print a sweep: microseconds of each line, and the rate and share of the floor of the fastest."""
    rate, lines = rate_of(curve), curve.lines
    backends = [line.partition("/")[0] for line in lines]
    short = (
        b if backends.count(b) == 1 and b in ("triton", "cuda") else label(x)
        for x, b in zip(lines, backends, strict=True)
    )
    head = (curve.axis, *short, f"best, {rate.unit}", *(("of the floor",) if curve.ceilings else ()))
    body = [(_cells(curve, n, rate), None) for n in curve.lengths]
    console.print(Columns(head, spare=head[: len(lines) : -1]).table(console, body, f"{curve.title}, us"))
    if stale := curve.stale:
        console.print(
            f"stale, what they launch has changed since: {', '.join(map(label, stale))}", style="yellow", soft_wrap=True
        )


def section() -> str:
    """All sweeps on record, for a page in docs/: of some the picture, of each what it was measured on and by."""
    known = measured.recorded() if measured.shipped() else []
    return "\n\n".join(map(_paragraph, known)) or "No sweep is on record."


def _paragraph(curve: Curve) -> str:
    stale = f" Stale, since their source has changed: {', '.join(map(label, curve.stale))}." if curve.stale else ""
    numbers = measured.path_of(curve).relative_to(measured.FOLDER.parent).as_posix()
    shown = f"![{curve.title}: time and rate over {curve.axis}](images/curves/{measured.name_of(curve)}.svg)\n\n"
    picture = shown if curve.op in PICTURED else ""
    where = f"{wording.where(curve.machine)}, {curve.date}; [CSV](../kernelmux/{numbers}).{stale}"
    heading = ", ".join([f"{curve.op} over {curve.axis}", *curve.order])
    return f"### {heading}\n\n{picture}{where}\n\n```console\n$ {curve.command}\n```"


def _cells(curve: Curve, length: int, rate: Rate) -> list[Text]:
    rows = [of_line.get(length) for of_line in curve.lines.values()]
    best = min((row for row in rows if row), key=lambda row: row.median_us)
    times = [
        Text(wording.microseconds(row.median_us) if row else "-", "bold green" if row is best else "") for row in rows
    ]
    reached = rate.of(best, best.median_us)
    return [Text(str(length)), *times, Text(f"{reached:.{0 if reached >= 100 else 1}f}"), Text(wording.share(best))]
