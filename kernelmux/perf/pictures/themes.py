"""The colours of the pictures of reports and pages: SVG that follows its reader's light or dark setting.

A picture is drawn in light colours. `themed` makes each a CSS variable, which has another value where dark is preferred.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PAPER, INK, GREY, FAINT, RULE = "#ffffff", "#1f2933", "#616e7c", "#9aa5b1", "#e4e7eb"
BACKENDS = {"torch_ref": "#6b7280", "triton": "#2563eb", "cuda": "#15803d"}
MORE = ("#9333ea", "#be123c", "#0e7490", "#a16207", "#b45309")  # other lines and bars

DARK = {  # what stands for each colour on a dark ground
    PAPER: "#0d1117",
    INK: "#e6edf3",
    GREY: "#9da7b3",
    FAINT: "#6e7681",
    RULE: "#30363d",
    "#6b7280": "#a3acb9",
    "#2563eb": "#6ea8fe",
    "#15803d": "#4ac26b",
    "#b45309": "#f0a030",
    "#9333ea": "#c297ff",
    "#f1f4f7": "#21262d",
    "#be123c": "#ff8fa3",
    "#0e7490": "#56d4e8",
    "#a16207": "#d9b23c",
}
_COLOURS = re.compile("|".join(DARK))


def variable(colour: str) -> str:
    """The value in CSS of a colour of `DARK`, given by its light one."""
    return f"var(--c{colour[1:]})"


def variables(svg: str) -> str:
    """A picture with variables for colours; where it stands needs `style`."""
    return _COLOURS.sub(lambda found: variable(found[0]), svg)


def style(colours: Iterable[str] = DARK) -> str:
    """CSS that gives the variables of colours their values."""
    light, dark = "", ""
    for colour in colours:
        light += f"--c{colour[1:]}:{colour};"
        dark += f"--c{colour[1:]}:{DARK[colour]};"
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


def themed(svg: str) -> str:
    """A picture with variables for colours and the style that they need."""
    used = dict.fromkeys(_COLOURS.findall(svg))
    return re.sub(r"<svg\b[^>]*>", rf"\g<0><style>{style(used)}</style>", variables(svg), count=1)
