"""What is shown while a search runs: a bar with the time that is left in a terminal, a line per phase elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Progress:
    """The phases of a search."""

    Step = Callable[[], None]

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Step]:
        """One phase of so many steps; gives what to call after each."""
        columns = (TextColumn(f"tune: {name}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
        left = (TextColumn("left"), TimeRemainingColumn())
        terminal, start = self.console.is_terminal, time.monotonic()
        bar = rich.progress.Progress(*columns, *left, console=self.console, transient=True, disable=not terminal)
        with bar:
            task = bar.add_task(name, total=total)
            yield lambda: bar.update(task, advance=1)
            done = int(bar.tasks[0].completed)
        self.console.print(f"{name}: {done} of {total} in {time.monotonic() - start:.0f} s", markup=False)
