"""What every picture that matplotlib draws here has in common: type, ink, and how it becomes SVG or PNG.

with figures.blank(7.5, 5.4) as figure:
    axes = figure.subplots()
    ...
    text = figures.svg(figure)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from kernelmux.perf.pictures import themes
from kernelmux.perf.pictures.themes import INK, PAPER, RULE

INKED = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "kernelmux",  # identifiers that do not change from run to run
    "axes.spines.top": False,
    "axes.spines.right": False,
}
LIGHT = {colour: colour for colour in themes.DARK}
UNDATED = dict.fromkeys(("Date", "Creator", "Format", "Type"))  # nothing of when and by which version
PROLOGUE = re.compile(r"^.*?(?=<svg )", re.DOTALL)
WITHIN = re.compile(r"\s*\n(?: {4,}|(?=[^<\s]))")  # a break within a path or a mark
LONGEST = 1200  # letters of a line that holds a group of marks, such as an axis with its ticks
OPENS = re.compile(r"\s*<(?:g|defs|clipPath)\b[^>]*>(?!.*</(?:g|defs|clipPath)>\s*$)")  # a line that begins a group
CLOSES = re.compile(r"\s*</(?:g|defs|clipPath)>\s*$")  # a line that ends one
IDS = re.compile(r'(\bid="|url\(#|href="#)')


def available() -> bool:
    """Whether there is something to draw with."""
    return find_spec("matplotlib") is not None


@contextmanager
def blank(width: float, height: float, ground: dict[str, str] = LIGHT, size: float = 9) -> Iterator[Any]:
    """An empty figure of so many inches (96 CSS pixels each), to be drawn and saved inside of the block.

    ground: what stands for each colour of `themes`. size: of its letters, in points of 1/72 inch.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    inks = dict.fromkeys(INKED, ground[INK]) | {"axes.facecolor": ground[PAPER], "grid.color": ground[RULE]}
    with matplotlib.rc_context(STYLE | inks | {"font.size": size}):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor=ground[PAPER])
        FigureCanvasAgg(figure)  # measures text, whatever it is saved as
        yield figure


def svg(figure: Any) -> str:
    """A document of its own, which follows its reader's light or dark setting; a mark or a small group is a line."""
    return joined(WITHIN.sub(" ", themes.themed(_text(figure))))


def joined(text: str) -> str:
    """SVG with each group of at most `LONGEST` letters in one line, so that a changed number is a changed line."""
    open_groups: list[list[str]] = [[]]
    for line in text.splitlines():
        begins = OPENS.match(line) is not None
        if begins:
            open_groups.append([])
        open_groups[-1].append(line)
        if len(open_groups) > 1 and CLOSES.match(line):
            group = open_groups.pop()
            told = "".join([group[0].rstrip(), *(part.strip() for part in group[1:])])
            open_groups[-1] += [told] if len(told) <= LONGEST else group
    return "\n".join(line for group in open_groups for line in group) + "\n"


def inside(figure: Any, name: str) -> str:
    """An element for a page that has the colours as variables; `name` must be the picture's own on that page."""
    return scoped(themes.variables(PROLOGUE.sub("", _text(figure, transparent=True))), name)


def scoped(text: str, name: str) -> str:
    """SVG with identifiers that no other picture of the page has."""
    return IDS.sub(rf"\g<1>{name}-", text)


def png(figure: Any, dpi: int) -> bytes:
    return _saved(figure, format="png", dpi=dpi)


def _text(figure: Any, **more: Any) -> str:
    return _saved(figure, format="svg", metadata=UNDATED, **more).decode()


def _saved(figure: Any, **more: Any) -> bytes:
    out = BytesIO()
    figure.savefig(out, **more)
    return out.getvalue()
