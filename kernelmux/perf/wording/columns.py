"""Tables for any width: numbers are never cut; columns that can be missed go first, then names are folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2  # between two columns
NARROW = 12  # to which a column of names may be folded


@dataclass(frozen=True)
class Columns:
    """Names of the columns, which of them are text (aligned to the left), and which may go, the first one first.

    absent: those that are not shown at any width.
    """

    names: tuple[str, ...]
    text: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    styles: dict[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def table(
        self, console: Console, rows: Sequence[tuple[Sequence[Text | str], str | None]], title: str = ""
    ) -> Table:
        """A table of rows with their styles, as wide as the console allows."""
        kept = self._kept([cells for cells, _ in rows], console.width)
        made = Table(
            title=Text(title) if title else None, title_justify="left", title_style="bold", box=None, pad_edge=False
        )
        for name in kept:
            made.add_column(
                Text(name),
                justify="left" if name in self.text else "right",
                no_wrap=name not in self.text,
                overflow="fold",
                style=self.styles.get(name),
            )
        for cells, style in rows:
            made.add_row(*(cell for name, cell in zip(self.names, cells, strict=False) if name in kept), style=style)
        left = [name for name in self.names if name not in kept and name not in self.absent]
        if left:
            made.caption, made.caption_justify = f"left out at this width: {', '.join(left)}", "left"
        return made

    def without_empty(self, rows: Sequence[tuple[Sequence[Text | str], str | None]]) -> Columns:
        """The same without the columns in which no row has anything."""
        full = {name for cells, _ in rows for name, cell in zip(self.names, cells, strict=False) if str(cell)}
        return replace(self, absent=tuple(name for name in self.names if name and name not in full))

    def _kept(self, rows: list[Sequence[Text | str]], width: int) -> list[str]:
        kept, spare = [n for n in self.names if n not in self.absent], [n for n in self.spare if n not in self.absent]
        while spare and self._least(kept, rows) > width:
            kept.remove(spare.pop(0))
        return kept

    def _least(self, kept: list[str], rows: list[Sequence[Text | str]]) -> int:
        """The width that the kept columns need at least."""
        total = GAP * (len(kept) - 1)
        for i, name in enumerate(self.names):
            if name in kept:
                longest = max([len(name), *(len(str(cells[i])) for cells in rows if i < len(cells))])
                total += min(longest, NARROW) if name in self.text else longest
        return total
