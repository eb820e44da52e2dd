"""What is shown while a search runs: a bar with the time that is left in a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

EVERY = 20.0  # seconds between two lines of a phase


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
            told = start

            def step() -> None:
                nonlocal told
                bar.update(task, advance=1)
                if not terminal and time.monotonic() - told >= EVERY:
                    told = time.monotonic()
                    self._say(name, bar.tasks[0], told - start)

            yield step
        self._say(name, bar.tasks[0], time.monotonic() - start)

    def _say(self, name: str, task: rich.progress.Task, seconds: float) -> None:
        self.console.print(f"{name}: {task.completed:.0f} of {task.total:.0f} in {seconds:.0f} s", markup=False)
