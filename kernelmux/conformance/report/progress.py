"""What is seen while a run goes on: a bar in a terminal, now and then a line elsewhere; failures at once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from kernelmux.conformance.report import artifacts
from kernelmux.conformance.session import mutation
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import Item

FAILED = "bold red"
PAUSE, PART = 10.0, 30  # seconds between two lines of a log at least, and this part of the time so far


class Closed(KeyboardInterrupt):
    """The reader of the output has gone; ends a run like Ctrl-C does."""


class ProgressConsole(Console):
    """A console that ends the run where rich would leave the process."""

    def on_broken_pipe(self) -> NoReturn:
        self.quiet = True
        raise Closed


def output(terminal: bool) -> ProgressConsole:
    """Standard output; 120 columns where it is no terminal."""
    return ProgressConsole(highlight=False) if terminal else ProgressConsole(highlight=False, width=120)


class Clock:
    """How much longer: the seconds that items took before, scaled by how they go now, over the worker processes."""

    def __init__(self, items: list[Item], seconds: dict[str, float], workers: int, end: float = math.inf) -> None:
        """end: when the run is over whatever is left, by time.monotonic."""
        known = [seconds[i.id] for i in items if i.id in seconds]
        usual = sum(known) / len(known) if known else 1.0
        self.left = {i.id: max(seconds.get(i.id, usual), 1e-3) for i in items}
        self.rest = sum(self.left.values())  # kept up, since it is asked for after every item
        self.workers, self.guessed, self.taken, self.end = workers, 0.0, 0.0, end

    def finish(self, outcome: Outcome) -> None:
        guessed = self.left.pop(outcome.item.id, 0.0)
        self.rest -= guessed
        self.guessed += guessed
        self.taken += outcome.seconds

    def __str__(self) -> str:
        """How long the rest takes; "" before anything is known."""
        if not self.guessed or not self.left:
            return ""
        seconds = max(self.rest, 0.0) * self.taken / self.guessed / min(self.workers, len(self.left))
        return f"about {duration(max(min(seconds, self.end - time.monotonic()), 0.0))} left"


def duration(seconds: float) -> str:
    """Seconds in words: 42 s, 3 min, 2.1 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Reporter:
    """Gathers outcomes and shows them as they come.

    interrupted: by Ctrl-C, or because the reader of the output has gone (`closed`). outcomes: by item and card.
    """

    def __init__(
        self,
        items: list[Item],
        console: Console,
        seconds: dict[str, float] | None = None,
        workers: int = 1,
        quiet: bool = False,
        verbose: bool = False,
        end: float = math.inf,
    ) -> None:
        """seconds: of items in earlier runs. end: when the run is over, by time.monotonic.

        quiet: failures alone, and no bar, which would stand in the way of a debugger. verbose: a line for every item.
        """
        self.items = {item.id: item for item in items}
        self.console, self.clock = console, Clock(items, seconds or {}, workers, end)
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        self.failed, self.cards = 0, {""}
        self.interrupted = self.closed = False
        self.causes: dict[tuple[str, str, str], Item] = {}  # operator, variant, cause -> the item that showed it first
        self.verbose, self.quiet = verbose, quiet
        self.start = self.told = time.monotonic()  # told: when a line of a log was last printed
        self.bar = Progress(
            TextColumn("conformance"),
            BarColumn(None, table_column=Column(ratio=2)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[failed]}"),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[left]}"),
            TextColumn("[dim]{task.fields[last]}", table_column=Column(ratio=3, no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal or quiet,
        )
        self.task = self.bar.add_task("run", total=len(items), failed="", last="", left="")

    @property
    def total(self) -> int:
        """How many outcomes there will be: of each item on every card, as far as cards have reported."""
        return len(self.items) * max(1, len(self.cards - {""}))

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The bar, for as long as this lasts."""
        self.bar.start()
        try:
            yield
        finally:
            with suppress(Closed):
                self.bar.stop()

    def take(self, outcome: Outcome) -> None:
        """An item has ended; Closed if the reader of what is shown has gone."""
        self.failed += self._wrong(outcome)
        self.cards.add(outcome.card)
        self.outcomes[outcome.item.id, outcome.card] = outcome
        self.clock.finish(outcome)
        failed = f"[red]{self.failed} failed" if self.failed else ""
        last, left = outcome.item.id, str(self.clock)
        try:
            done = len(self.outcomes)
            self.bar.update(self.task, completed=done, total=self.total, failed=failed, last=last, left=left)
            self.show(outcome)
        except Closed:
            self.closed = True
            raise

    def resumes(self) -> None:
        """A line: how many outcomes there are from a run before."""
        if not self.quiet:
            text = f"going on with {len(self.outcomes)} of {self.total} items, of a run that was stopped"
            self.console.print(text, highlight=False)

    def _wrong(self, outcome: Outcome) -> bool:
        """Whether it counts as a failure of the run."""
        return outcome.status == "failed"

    def show(self, outcome: Outcome) -> None:
        """A failure at once and in full, unless its cause was shown before; of other items a line if that is asked for."""
        if outcome.status == "failed":
            self.console.print(f"FAILED {outcome.id}", style=FAILED, highlight=False)
            known = self._known(outcome)
            self.console.print(known or outcome.text + "\n", markup=False, highlight=False, soft_wrap=True)
        elif self.verbose:
            self.log(line(outcome))
        else:
            self.tick()

    def tick(self) -> None:
        """Where there is no bar, now and then, a line that says how far the run has got."""
        now = time.monotonic()
        if not (self.console.is_terminal or self.quiet) and now - self.told >= max(PAUSE, (now - self.start) / PART):
            self.told = now
            self.log(self.state())

    def state(self) -> str:
        """What came out so far."""
        counts = artifacts.counts(list(self.outcomes.values()))
        return ", ".join(f"{number} {status}" for status, number in counts.items())

    def log(self, text: str) -> None:
        """A line of a log, with how far the run has got."""
        left = f", {told}" if (told := str(self.clock)) else ""
        count = f"[{len(self.outcomes)}/{self.total}{left}]"
        self.console.print(f"{count} {text}", markup=False, highlight=False, soft_wrap=True)

    def _known(self, outcome: Outcome) -> str:
        """A line in place of a failure whose causes were all shown for the same variant, or ""."""
        item = outcome.item
        keys = [(item.op, item.label, cause) for cause in outcome.causes]
        first = [self.causes.get(key) for key in keys]
        self.causes.update({key: item for key in keys if key not in self.causes})
        if not first or None in first:
            return ""
        places = ", ".join(outcome.causes)
        return f"  the same as in {', '.join(sorted({i.id for i in first if i}))}: {places}"


def line(outcome: Outcome) -> str:
    """An item in one line, for logs."""
    if outcome.status in ("skipped", "expected"):
        return f"{outcome.status} {outcome.id}: {outcome.text}"
    used = f", budget {outcome.budget:.2f}" if outcome.budget else ""
    return f"{outcome.status} {outcome.id} ({outcome.passed} trials{used}, {outcome.seconds:.1f} s)"


class MutantReporter(Reporter):
    """The same for broken kernels, which are to fail."""

    def __init__(self, broken: set[tuple[str, str, str]], *arguments: Any, **more: Any) -> None:
        """broken: operator, backend and variant of those that a check must catch."""
        super().__init__(*arguments, **more)
        self.broken = broken

    def _wrong(self, outcome: Outcome) -> bool:
        item = outcome.item
        return (outcome.status == "failed") != ((item.op, item.backend, item.variant) in self.broken)

    def show(self, outcome: Outcome) -> None:
        wrong = self._wrong(outcome)
        if wrong and outcome.status == "failed":
            super().show(outcome)
        elif wrong or self.verbose:
            self.log(("NOT CAUGHT: " if wrong else "") + mutation.line(outcome))
        else:
            self.tick()

    def state(self) -> str:
        """How many of them were not what they are to be."""
        return f"{self.failed} wrong"
