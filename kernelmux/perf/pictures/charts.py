"""The charts of the page as SVG that can stand inside HTML: the roofline, the shares, and the ladder of each workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelmux.perf.pictures import figures, roofline_picture, themes
from kernelmux.perf.rows.roofline import Ceilings
from kernelmux.perf.rows.row_result import Timed
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.groups import ResultGroup

# Inches; 96 CSS pixels each, for the SVG is not scaled.
ROOFLINE, SHARES_WIDTH, LADDER_WIDTH = (7.5, 5.4), 5.8, 4.25
PER_GROUP, PER_VARIANT, AXIS = 0.48, 0.27, 0.62


def roofline(groups: list[ResultGroup], ceilings: Ceilings) -> str:
    """Arithmetic intensity against achieved rate, the best variant of each backend."""
    return _svg("roofline", ROOFLINE, lambda axes: roofline_picture.roofline(axes, groups, ceilings))


def shares(groups: list[ResultGroup]) -> str:
    """The share of the floor per operator, a bar per backend."""
    return _svg(
        "shares", (SHARES_WIDTH, AXIS + PER_GROUP * len(groups)), lambda axes: roofline_picture.shares(axes, groups)
    )


def ladder(group: ResultGroup, name: str) -> str:
    """A bar per variant, in ladder order; `name` must be the chart's own on its page."""
    height = AXIS + PER_VARIANT * len(group.good)
    return _svg(name, (LADDER_WIDTH, height), lambda axes: _ladder(axes, group))


def _svg(name: str, size: tuple[float, float], draw: Callable[[Any], None]) -> str:
    with figures.blank(*size) as figure:
        draw(figure.subplots())
        return figures.inside(figure, name)


def _ladder(axes: Any, group: ResultGroup) -> None:
    rows = group.good
    bars = range(len(rows))
    colours = [roofline_picture.colour(row.backend) for row in rows]
    axes.barh(bars, [100 * roofline_picture.share(row) for row in rows], 0.72, color=colours)
    for bar, row in zip(bars, rows, strict=True):
        _label(axes, group, row, bar)
    axes.set_yticks(bars, [row.label for row in rows])
    for text, row in zip(axes.get_yticklabels(), rows, strict=True):
        text.set_fontweight("bold" if group.leads(row) else "normal")
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, 160), xticks=range(0, 101, 25), xlabel="share of the floor, %")
    axes.axvline(100, color=themes.INK, linewidth=1.0)


def _label(axes: Any, group: ResultGroup, row: Timed, bar: int) -> None:
    """The share and the time behind a bar; the difference of its two timings as a whisker."""
    share = 100 * roofline_picture.share(row)
    if row.second:
        axes.errorbar(share, bar, xerr=share * row.second.apart, color=themes.INK, capsize=2, linewidth=0.8)
    text = f"{share:.0f} %, {wording.microseconds(row.median_us)} µs"
    weight = "bold" if group.leads(row) else "normal"
    axes.text(103, bar, text, va="center", fontsize=8, color=themes.GREY, fontweight=weight)
