"""What the pictures of the generated pages have in common: a ground, a title, type."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from kernelmux.emulator import themes
from kernelmux.emulator.tracing.drawing.svg import SANS


def picture(width: int, height: int, left: int, title: str, style: str, parts: Iterable[str]) -> str:
    """SVG text of elements below a title, in light and dark. left: where the title begins. style: CSS of the elements."""
    shared = f"text{{font-family:{SANS};fill:{themes.INK}}}.title{{font-size:15px;font-weight:600}}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label="{escape(title)}"><style>{shared}.grey{{fill:{themes.GREY}}}{style}</style>',
        f'<rect width="{width}" height="{height}" fill="{themes.PAPER}"/>',
        f'<text class="title" x="{left}" y="26">{escape(title)}</text>',
        *parts,
        "</svg>",
    ]
    return themes.themed("\n".join(lines)) + "\n"
