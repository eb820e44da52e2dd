"""A few SVG shapes, colours and type sizes; positions are pixels from the top left."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring

from kernelmux.emulator.tracing.drawing import themes
from kernelmux.emulator.tracing.drawing.themes import INK, PAPER

MONO = "ui-monospace, 'SFMono-Regular', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', 'Liberation Sans', sans-serif"
LONGEST = 1200  # letters of a line of the file
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
    """Collects shapes. Those between two calls of `part` belong together, and share lines of the file."""

    def __init__(self) -> None:
        self.shapes: list[Element] = []
        self._parts: list[int] = []  # of each shape the number of its part
        self._part = 0

    def part(self) -> None:
        """What follows is another part of the picture."""
        self._part += 1

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        stroke: str = "none",
        radius: float = 0,
        title: str = "",
        opacity: float = 1.0,
        thick: float = 1.0,
    ) -> None:
        """A rectangle; title: what a browser shows under the pointer."""
        edge = stroke != "none"
        made = self._add(
            "rect",
            x=x,
            y=y,
            width=width,
            height=height,
            fill=fill,
            fill_opacity=opacity if opacity < 1 else None,
            stroke=stroke if edge else None,
            stroke_width=thick if edge else None,
            rx=radius or None,
        )
        if title:
            SubElement(made, "title").text = title

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str, thick: float = 1.0) -> None:
        """A straight line."""
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, stroke_width=thick)

    def curve(self, x1: float, y1: float, x2: float, y2: float, stroke: str, opacity: float = 1.0) -> None:
        """A line that leaves and arrives vertically."""
        middle = (y1 + y2) / 2
        path = f"M{x1:.1f},{y1:.1f}C{x1:.1f},{middle:.1f} {x2:.1f},{middle:.1f} {x2:.1f},{y2:.1f}"
        self._add("path", d=path, fill="none", stroke=stroke, stroke_width=0.9, stroke_opacity=opacity)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12,
        colour: str = INK,
        anchor: str = "start",
        mono: bool = False,
        bold: bool = False,
    ) -> None:
        """Text whose base line is at y."""
        side, weight, kind = (anchor if anchor != "start" else None), (600 if bold else None), ("m" if mono else None)
        style = {"fill": colour, "text_anchor": side, "font_weight": weight, "class": kind}
        self._add("text", x=x, y=y, font_size=size, **style).text = text

    def _add(self, name: str, **attributes: str | float | None) -> Element:
        """An element of these attributes, but those that are None; "_" stands for "-"."""
        told = {key.replace("_", "-"): value for key, value in attributes.items() if value is not None}
        numbers = {key: f"{round(value, 2):g}" for key, value in told.items() if not isinstance(value, str)}
        self.shapes.append(Element(name, {key: str(value) for key, value in (told | numbers).items()}))
        self._parts.append(self._part)
        return self.shapes[-1]

    def image(self, width: float, height: float) -> str:
        """The whole as an SVG document, in light and dark."""
        size = {"width": f"{width:.0f}", "height": f"{height:.0f}", "viewBox": f"0 0 {width:.0f} {height:.0f}"}
        made = Element("svg", size, xmlns="http://www.w3.org/2000/svg")
        SubElement(made, "style").text = f"text{{font-family:{SANS};white-space:pre}}.m{{font-family:{MONO}}}"
        SubElement(made, "rect", width="100%", height="100%", fill=PAPER)
        made[-1].tail = made.text = "\n"
        made[0].tail = "\n"
        made.extend(self.shapes)
        for _, part in groupby(zip(self._parts, self.shapes, strict=True), key=lambda pair: pair[0]):
            _in_lines([shape for _, shape in part])
        return themes.themed(tostring(made, encoding="unicode"))


def _in_lines(shapes: list[Element]) -> None:
    """Break lines of `LONGEST` letters behind the last shape that fits."""
    length = 0
    for shape, following in zip(shapes, [*shapes[1:], None], strict=True):
        length += len(tostring(shape))
        if following is None or length + len(tostring(following)) > LONGEST:
            shape.tail, length = "\n", 0


def clipped(text: str, width: float, size: float) -> str:
    """Monospaced text cut to a width in pixels."""
    most = int(width / (size * MONO_WIDTH))
    return text if len(text) <= most else text[: most - 1] + "…"
