"""What is shown while a search runs: a bar with the time that is left in a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

EVERY = 20.0  # seconds between two lines


class Progress:
    """How many items of a search have ended, with the step of the last one. Entered while it runs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (TextColumn("tune: {task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
        left = (TextColumn("left"), TimeRemainingColumn())
        off = not console.is_terminal
        self.bar = rich.progress.Progress(*columns, *left, console=console, transient=True, disable=off)
        self.task = self.bar.add_task("start", total=None)
        self.start = self.told = time.monotonic()

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.bar.stop()

    def step(self, name: str, ended: int, total: int) -> None:
        """An item of a step has ended: now so many of those that are to be expected."""
        self.bar.update(self.task, description=name, completed=ended, total=total)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.told >= EVERY:
            self.told = now
            text = f"{name}: {ended} of {total} in {now - self.start:.0f} s"
            self.console.print(text, markup=False, soft_wrap=True)
