"""The colours of the pictures, and what stands for each where the reader's setting is dark.

A picture is drawn in light colours. `themed` makes each a CSS variable, which has another value where dark is preferred.
"""

from __future__ import annotations

import re

PAPER, INK, GREY, FAINT, RULE = "#ffffff", "#1f2933", "#616e7c", "#9aa5b1", "#e4e7eb"

DARK = {  # what stands for each colour on a dark ground
    PAPER: "#0d1117",
    INK: "#e6edf3",
    GREY: "#9da7b3",
    FAINT: "#6e7681",
    RULE: "#30363d",
    "#1d7a3d": "#56d364",
    "#b42525": "#ff7b72",
    "#946200": "#e3b341",
    "#1d5fae": "#79c0ff",
    "#243b53": "#e6edf3",
    "#e3f5e8": "#12361f",
    "#fde8e8": "#4a1c1c",
    "#fff4cc": "#3f3210",
    "#e1eefc": "#132f52",
    "#fafbfc": "#161b22",
    "#f5f6f7": "#161b22",
    "#f1f4f7": "#21262d",
    "#f3e6dc": "#4a3322",
    "#eaf0dc": "#36452a",
    "#e7e1f1": "#3b3157",
    "#dbe7f3": "#1f3a57",
    "#dcefee": "#1d4240",
    "#f4e4ea": "#4a2a38",
}
_COLOURS = re.compile("|".join(DARK))


def themed(svg: str) -> str:
    """A picture with variables for colours and the style that gives them their values."""
    used = dict.fromkeys(_COLOURS.findall(svg))
    light = "".join(f"--c{colour[1:]}:{colour};" for colour in used)
    dark = "".join(f"--c{colour[1:]}:{DARK[colour]};" for colour in used)
    style = f"<style>:root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    told = _COLOURS.sub(lambda found: f"var(--c{found[0][1:]})", svg)
    return re.sub(r"<svg\b[^>]*>", rf"\g<0>{style}", told, count=1)
