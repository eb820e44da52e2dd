"""The launches of a trace one below the other, with a legend: an SVG image, or an HTML page around it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from kernelmux.emulator.tracing.drawing import section
from kernelmux.emulator.tracing.drawing.svg import BLUE, GREEN, RED, YELLOW, Canvas
from kernelmux.emulator.tracing.drawing.themes import GREY, INK, RULE

LEGEND = (
    (GREEN, "coalesced; free of bank conflicts"),
    (RED, "more sectors than needed"),
    (BLUE, "more sectors than needed, but mostly touched before by the block: a cache serves them"),
    (YELLOW, "bank conflicts"),
)
NOTES = (
    "Global memory: 32 threads of a warp above, the 32-byte sectors that their request moves below; what is filled is "
    "used. Small numbers are byte offsets in the array.",
    "Shared memory: a column is a bank, a row is one pass over all banks; a number is the thread that is served, ×n "
    "threads share a word. Map: yellow is the drawn block, dark its drawn warp.",
    "Figures are of the whole launch; drawings show the first request of the drawn warp, or of another if it makes none.",
)


FEW = 2  # launches whose lines are shown with their neighbours


def write_picture(launches: Sequence[tuple[str, Any]], path: Path) -> None:
    """Draws titles and `LaunchTrace`s into a file; the name's end says how: .svg, else HTML."""
    image = draw(launches)
    title = launches[0][0] if launches else ""
    path.write_text(
        image + "\n" if path.suffix == ".svg" else _page(image, title or "memory accesses"), encoding="utf-8"
    )


def draw(launches: Sequence[tuple[str, Any]]) -> str:
    """The image as SVG text."""
    canvas, y = Canvas(), section.MARGIN
    for i, (title, launch) in enumerate(launches):
        if i:
            canvas.line(0, y, section.WIDTH, y, RULE, 6)
            y += 26
        y = section.draw(canvas, y, launch, title, context=len(launches) <= FEW)
    return canvas.image(section.WIDTH, _legend(canvas, y) + 14)


def _legend(canvas: Canvas, y: float) -> float:
    canvas.line(section.MARGIN, y, section.WIDTH - section.MARGIN, y, RULE)
    x, y = section.MARGIN, y + 24
    for tint, text in LEGEND:
        canvas.rect(x, y - 10, 12, 12, tint.fill, radius=2)
        canvas.text(x + 18, y, text, 11.5, INK)
        x += 46 + 6.4 * len(text)
    for i, note in enumerate(NOTES):
        canvas.text(section.MARGIN, y + 22 + 17 * i, note, 11, GREY)
    return y + 22 + 17 * len(NOTES)


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<style>
body {{ margin: 0; background: #f1f4f7 }}
main {{ max-width: 1220px; margin: 24px auto; background: #fff; box-shadow: 0 1px 6px #0002; overflow-x: auto }}
svg {{ display: block; width: 100%; min-width: 960px; height: auto }}
@media (prefers-color-scheme: dark) {{ body {{ background: #010409 }} main {{ background: #0d1117 }} }}
</style></head>
<body><main>
{image}
</main></body></html>
"""


def _page(image: str, title: str) -> str:
    return PAGE.format(title=escape(title), image=image)
