"""A few SVG shapes, colours and type sizes; positions are pixels from the top left."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from kernelmux.emulator import themes
from kernelmux.emulator.themes import INK, PAPER

MONO = "ui-monospace, 'SFMono-Regular', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', 'Liberation Sans', sans-serif"
MONO_WIDTH = 0.602  # of a letter, in units of the type size


class Tint(NamedTuple):
    """A colour for lines and filled cells, one for text, and a pale one for areas."""

    fill: str
    text: str
    pale: str


GREEN, RED = Tint("#40a35f", "#1d7a3d", "#e3f5e8"), Tint("#dd4b4b", "#b42525", "#fde8e8")
YELLOW, BLUE = Tint("#f2b705", "#946200", "#fff4cc"), Tint("#3b82d6", "#1d5fae", "#e1eefc")
PLAIN = Tint("#9aa5b1", "#616e7c", "#f1f4f7")
TINTS = {
    "coalesced": GREEN,
    "conflict-free": GREEN,
    "uncoalesced": RED,
    "conflicts": YELLOW,
    "cached": BLUE,
    "plain": PLAIN,
}


class Canvas:
    """Collects shapes. `height` grows with what is drawn by the caller's own account."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, stroke: str = "none", radius: float = 0,
        title: str = "", opacity: float = 1.0, thick: float = 1.0,
    ) -> None:  # fmt: skip
        """A rectangle; title: what a browser shows under the pointer."""
        edge = f' stroke="{stroke}" stroke-width="{thick:g}"' if stroke != "none" else ""
        rounded = f' rx="{radius:g}"' if radius else ""
        pale = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        inside = f"<title>{escape(title)}</title></rect>" if title else ""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        head = f'<rect {place} fill="{fill}"{pale}{edge}{rounded}'
        self.parts.append(f"{head}>{inside}" if inside else head + "/>")

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str, thick: float = 1.0) -> None:
        """A straight line."""
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
            f'stroke-width="{thick:g}"/>'
        )

    def curve(self, x1: float, y1: float, x2: float, y2: float, stroke: str, opacity: float = 1.0) -> None:
        """A line that leaves and arrives vertically."""
        middle = (y1 + y2) / 2
        self.parts.append(
            f'<path d="M{x1:.1f},{y1:.1f}C{x1:.1f},{middle:.1f} {x2:.1f},{middle:.1f} {x2:.1f},{y2:.1f}" fill="none" '
            f'stroke="{stroke}" stroke-width="0.9" stroke-opacity="{opacity:g}"/>'
        )

    def text(
        self, x: float, y: float, text: str, size: float = 12, colour: str = INK, anchor: str = "start",
        mono: bool = False, bold: bool = False,
    ) -> None:  # fmt: skip
        """Text whose base line is at y."""
        family = ' class="m"' if mono else ""
        weight = ' font-weight="600"' if bold else ""
        side = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}"{side}{weight}{family}>'
            f"{escape(text)}</text>"
        )

    def image(self, width: float, height: float) -> str:
        """The whole as an SVG document, in light and dark."""
        style = f"text{{font-family:{SANS};white-space:pre}}.m{{font-family:{MONO}}}"
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}"><style>{style}</style>'
        )
        ground = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
        return themes.themed("\n".join([head, ground, *self.parts, "</svg>"]))


def clipped(text: str, width: float, size: float) -> str:
    """Monospaced text cut to a width in pixels."""
    most = int(width / (size * MONO_WIDTH))
    return text if len(text) <= most else text[: most - 1] + "…"
