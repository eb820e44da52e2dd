"""Which source lines a picture shows: those that access memory, and their neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DRAWN = ("global", "shared", "bulk")
CONTEXT = 2  # lines above and below one that accesses memory
MOST_LINES = 14  # that access memory


@dataclass(frozen=True)
class ExcerptLine:
    """A line of the excerpt; number None: something was left out, or a heading; line: its counts if it has any."""

    number: int | None
    text: str
    line: Any = None

    @property
    def traffic(self) -> list[Any]:
        """The accesses to draw."""
        return [t for t in self.line.traffic if t.space in DRAWN] if self.line else []


def rows(launch: Any, context: int = CONTEXT) -> list[ExcerptLine]:
    """The excerpt of a `LaunchTrace`."""
    busy = [line for line in launch.lines if any(t.space in DRAWN for t in line.traffic)]
    costly = sorted(busy, key=lambda line: -sum(t.cost for t in line.traffic))[:MOST_LINES]
    own = {line.number: line for line in costly if line.file == launch.file}
    lines = _undented(list(_own(launch, own, context)))
    for line in costly:
        if line.file != launch.file:
            lines += [ExcerptLine(None, f"{line.file}:"), ExcerptLine(line.number, line.text.strip(), line)]
    if len(busy) > len(costly):
        lines.append(ExcerptLine(None, f"{len(busy) - len(costly)} more lines access memory, less often"))
    return lines


def _own(launch: Any, busy: dict[int, Any], context: int) -> Iterator[ExcerptLine]:
    wanted = sorted({n for number in busy for n in _around(number, context)})
    shown = [n for n in wanted if n in busy or launch.text(n).strip()]
    last = None
    for number in shown:
        if context and last is not None and any(launch.text(n).strip() for n in range(last + 1, number)):
            yield ExcerptLine(None, "⋮")
        yield ExcerptLine(
            number or None, launch.text(number) if number else "(no line of the source)", busy.get(number)
        )
        last = number


def _around(number: int, context: int) -> range:
    """A line and its neighbours; 0 is no line."""
    return range(max(1, number - context), number + context + 1) if number else range(1)


def _undented(lines: list[ExcerptLine]) -> list[ExcerptLine]:
    """Without the indentation that all lines share."""
    depths = [len(row.text) - len(row.text.lstrip()) for row in lines if row.number and row.text.lstrip()[:1] != "#"]
    depth = min(depths, default=0)
    return [
        ExcerptLine(
            row.number,
            row.text[min(depth, len(row.text) - len(row.text.lstrip())) :] if row.number else row.text,
            row.line,
        )
        for row in lines
    ]
