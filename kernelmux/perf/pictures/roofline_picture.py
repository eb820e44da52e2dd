"""The roofline as a picture: what each operator reaches against the roofs, and its share of the floor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import atan2, degrees
from pathlib import Path
from typing import Any

from kernelmux.perf.pictures import figures
from kernelmux.perf.pictures.themes import BACKENDS, FAINT, GREY, INK, MORE, RULE
from kernelmux.perf.record.run_file import Results
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.roofline import Ceilings
from kernelmux.perf.rows.row_result import Timed
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.groups import ResultGroup, backends_of, drawable
from kernelmux.registry import catalog
from kernelmux.registry.cases import written
from kernelmux.registry.errors import KernelmuxError

WIDTH, HEIGHT, EACH, DPI = 13.0, 6.4, 0.38, 120  # inches; of the roofline, and of an operator with its bars
FEW = 8  # operators whose bars stand in one column
MARKERS = {"torch_ref": "o", "triton": "s", "cuda": "^"}
LEFT, RIGHT = 0.04, 3e4  # flop per byte


def draw(results: Results, path: Path) -> bool:
    """Write the picture as <path>.svg and .png; False if there is nothing to draw or matplotlib is missing."""
    groups = drawable(results.rows) if figures.available() else []
    if not groups or results.ceilings is None:
        return False
    with _drawn(results, groups, results.ceilings) as figure:
        output_files.write(path.with_suffix(".svg"), figures.svg(figure))
        output_files.write(path.with_suffix(".png"), figures.png(figure, DPI))
    return True


def svg(results: Results, ceilings: Ceilings) -> str:
    """The picture of results and their ceilings as SVG text."""
    with _drawn(results, drawable(results.rows), ceilings) as figure:
        return figures.svg(figure)


@contextmanager
def _drawn(results: Results, groups: list[ResultGroup], ceilings: Ceilings) -> Iterator[Any]:
    parts = _halves(groups)
    heights = HEIGHT, 1 + EACH * len(parts[0])
    with figures.blank(WIDTH, sum(heights)) as figure:
        rows = [["roofline"] * len(parts), list(range(len(parts)))]
        axes = figure.subplot_mosaic(rows, height_ratios=heights)
        figure.suptitle(f"{results.machine.name}, {results.date}: best variant of each backend, largest workload")
        for number, part in enumerate(parts):
            shares(axes[number], part)
        roofline(axes["roofline"], groups, ceilings)  # last: where labels fit depends on the layout of all
        yield figure


def _halves(groups: list[ResultGroup]) -> list[list[ResultGroup]]:
    """The operators in two columns, or in one if they are few."""
    half = -(-len(groups) // 2) if len(groups) > FEW else len(groups)
    return [part for part in (groups[:half], groups[half:]) if part]


def colour(backend: str) -> str:
    return BACKENDS.get(backend) or MORE[sum(map(ord, backend)) % len(MORE)]


def _backends(groups: list[ResultGroup]) -> list[str]:
    return backends_of(row for group in groups for row in group.good)


def roofline(axes: Any, groups: list[ResultGroup], ceilings: Ceilings) -> None:
    """Arithmetic intensity against achieved rate; operators without arithmetic are not here."""
    shown = [group for group in groups if group.good[0].flops and group.good[0].link == "device"]
    rows = {name: [row for group in shown if (row := group.best_of(name))] for name in _backends(shown)}
    lowest = min((_point(row)[1] for of_backend in rows.values() for row in of_backend), default=1.0)
    top = max(ceilings.matmul.values(), default=1e12) / 1e12
    axes.set(xscale="log", yscale="log", xlim=(LEFT, RIGHT), ylim=(lowest / 4, top * 2.5))
    axes.set(xlabel="arithmetic intensity, flop per byte", ylabel="achieved rate, TFLOP/s")
    axes.grid(True, which="major", color=RULE, linewidth=0.6)
    texts = _roofs(axes, ceilings)
    for name, of_backend in rows.items():
        x, y = zip(*map(_point, of_backend), strict=True)
        marker = MARKERS.get(name, "D")
        axes.scatter(x, y, s=34, marker=marker, color=colour(name), label=name, zorder=3, linewidths=0)
    axes.legend(loc="lower right", frameon=False)
    axes.figure.canvas.draw()
    _labels(axes, shown, texts)


def _point(row: Timed) -> tuple[float, float]:
    return row.flops / row.bytes, row.flops / row.median_us / 1e6


def share(row: Timed) -> float:
    """Of the floor; 0 where it is not known."""
    return row.point.share if row.point else 0.0


def _roofs(axes: Any, ceilings: Ceilings) -> list[Any]:
    """Draw the ceilings; their labels are returned, because nothing may cover them."""
    copy, peaks = ceilings.copy / 1e12, {k: v / 1e12 for k, v in ceilings.matmul.items()}
    top = max(peaks.values(), default=copy * 100)
    axes.plot([LEFT, top / copy], [LEFT * copy, top], color=INK, linewidth=1.2)
    at = (5.0, 5.0 * copy * 1.25)  # a little above the line, and along it
    slanted = {"rotation": degrees(atan2(at[1], at[0])), "rotation_mode": "anchor", "transform_rotates_text": True}
    texts = [axes.text(*at, f"copy {copy:.2f} TB/s", color=GREY, **slanted)]
    for names, peak in _merged(peaks):
        axes.plot([peak / copy, RIGHT], [peak, peak], color=INK, linewidth=1.2)
        texts.append(axes.text(2 * peak / copy, peak * 1.08, f"{names} {peak:.0f} TFLOP/s", color=GREY, va="bottom"))
    return texts


def _merged(peaks: dict[str, float]) -> list[tuple[str, float]]:
    """Roofs that lie within 8 % of one another share a line, the highest."""
    roofs: list[tuple[str, float]] = []
    for name, peak in sorted(peaks.items(), key=lambda item: -item[1]):
        if roofs and peak > 0.92 * roofs[-1][1]:
            roofs[-1] = (f"{roofs[-1][0]}, {name}", roofs[-1][1])
        else:
            roofs.append((name, peak))
    return roofs


def _labels(axes: Any, groups: list[ResultGroup], texts: list[Any]) -> None:
    """The operator's name beside its fastest point, at the nearest spot where it covers nothing."""
    renderer = axes.figure.canvas.get_renderer()
    rows = [row for group in groups for name in _backends(groups) if (row := group.best_of(name))]
    points = [axes.transData.transform(_point(row)) for row in rows]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in points] + [_box(text, renderer) for text in texts]
    arrow = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3}
    for group in sorted(groups, key=lambda g: -_point(_best(g))[0]):
        at = _point(_best(group))
        text = axes.annotate(
            group.op, at, xytext=(0, 0), textcoords="offset points", va="center", color=INK, arrowprops=arrow
        )
        _settle(text, renderer, taken, axes.get_window_extent())


def _best(group: ResultGroup) -> Timed:
    return min(group.good, key=lambda row: row.median_us)


def _settle(text: Any, renderer: Any, taken: list[tuple[float, float, float, float]], frame: Any) -> None:
    """Move a label to the first free spot of a fan of offsets, right first, then below, above and left."""
    width = text.get_window_extent(renderer).width * 72 / text.figure.dpi
    fan = [(10, 0), (10, -12), (10, 12), (-10 - width, 0), (-10 - width, 12), (-10 - width, -12)]
    for radius in range(1, 25):
        for dx, dy in fan:
            offset = (dx + (radius - 1) * (6 if dx > 0 else -6), dy + (radius - 1) * (12 if dy > 0 else -12))
            text.set_position(offset)
            box = _box(text, renderer)
            inside = frame.x0 < box[0] and box[2] < frame.x1 and frame.y0 < box[1] and box[3] < frame.y1
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                return
    taken.append(_box(text, renderer))


def _box(text: Any, renderer: Any) -> tuple[float, float, float, float]:
    """The extent of the letters alone, without the leader line, in pixels."""
    from matplotlib.text import Text

    if hasattr(text, "update_positions"):  # an annotation moves when it is drawn
        text.update_positions(renderer)
    box = Text.get_window_extent(text, renderer)
    return box.x0, box.y0, box.x1, box.y1


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def shares(axes: Any, groups: list[ResultGroup]) -> None:
    """The share of the floor, a bar per backend and operator."""
    names = _backends(groups)
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        best = [(k, row) for k, group in enumerate(groups) if (row := group.best_of(name))]
        bars = [k + (i - (len(names) - 1) / 2) * height for k, _ in best]
        shares = [100 * share(row) for _, row in best]
        axes.barh(bars, shares, height * 0.9, color=colour(name), label=name)
        for bar, percent, (_, row) in zip(bars, shares, best, strict=True):
            text = f"{percent:.0f} %, {wording.microseconds(row.median_us)} µs"
            axes.text(max(102, percent + 2), bar, text, va="center", fontsize=7, color=GREY)
    axes.set_yticks(range(len(groups)), [f"{g.op}\n{_short(g)}" for g in groups], fontsize=8)
    axes.set(
        xlim=(0, 135),
        ylim=(len(groups) - 0.5, -0.5),
        xlabel="share of the floor, % (least possible / measured time)",
        xticks=range(0, 101, 20),
    )
    axes.axvline(100, color=INK, linewidth=1.0)


def _short(group: ResultGroup) -> str:
    """The largest shape and the scalars of a workload, and its dtype; all of its words if the operator is not here."""
    try:
        case = catalog.spec(group.op).case(group.workload)
        largest: tuple[int, ...] = max(case.shapes.values(), key=len)
    except KernelmuxError:
        return f"{group.workload} {group.dtype}"
    return " ".join(["x".join(map(str, largest)), *(f"{k}={written(v)}" for k, v in case.scalars.items()), group.dtype])
