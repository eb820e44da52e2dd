"""All recorded rows of each GPU as a page with its roofline, <folder>/records/<gpu>.md, and the roofline in docs.

The pages are not kept: they say what kernelmux/records/<gpu>/perf.json says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kernelmux.docs import HOME
from kernelmux.perf.pictures import roofline_picture
from kernelmux.perf.record import history
from kernelmux.perf.report import markdown
from kernelmux.registry.util.files import file_stem


def draw(folder: Path) -> list[Path]:
    """Write the pages and their pictures; the pages."""
    made = []
    for record in history.recorded():
        stem = file_stem(record.gpu)
        markdown.write(replace(record.results, rows=record.rows), folder / "records", stem)
        made.append(folder / "records" / f"{stem}.md")
    return made


def rooflines() -> Iterator[tuple[Path, str]]:
    """docs/images/roofline_<gpu>.svg of each GPU, which pages show."""
    for record in history.recorded():
        if ceilings := record.results.ceilings:
            yield HOME / f"images/roofline_{file_stem(record.gpu)}.svg", roofline_picture.svg(record.results, ceilings)
