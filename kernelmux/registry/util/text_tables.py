"""Tables as text: what `stats`, `record` and `support_matrix` answer, and those of pages in Markdown."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Collection, Iterable, Sequence

WIDTH = 100  # columns of a text whose reader is not known


def text(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[str] = (),
    optional: Collection[str] = (),
    width: int = WIDTH,
) -> str:
    """A table with a rule under its head; a cell that is too long for the width goes on in the next line.

    right: columns of numbers, which are never broken. optional: columns that are left out where every cell is empty.
    """
    from rich.box import SIMPLE_HEAD  # here: a call that prints nothing does without it
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = [list(row) for row in rows]
    kept = [i for i, name in enumerate(columns) if name not in optional or any(row[i] for row in found)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for i in kept:
        number = columns[i] in right
        table.add_column(columns[i], justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in found:
        table.add_row(*(Text(row[i]) for i in kept))
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def markdown(head: Iterable[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> str:
    """A table in Markdown; a cell may have several lines. right: columns of numbers."""
    names = list(head)
    rule = ["---:" if name in right else "---" for name in names]
    lines = [names, rule, *([cell.replace("|", "\\|").replace("\n", "<br>") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def counted(number: int, name: str) -> str:
    """A number of things: "1 call", "3 calls"."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def wrapped(text: str, width: int | None, first: str = "", further: str = "") -> list[str]:
    """A text in lines no longer than the width, but for single words that are; as one line where there is no width.

    first: what the first line begins with; further: what the others do.
    """
    if width is None:
        return [first + text]
    lead = text[: len(text) - len(text.lstrip())]  # wrapping would drop it
    return textwrap.wrap(
        text.lstrip(),
        width,
        initial_indent=first + lead,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )
