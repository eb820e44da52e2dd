"""What is seen while a run goes on: a bar in a terminal, now and then a line elsewhere; failures at once."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from kernelmux.conformance.report import artifacts
from kernelmux.conformance.session import mutation, scheduling
from kernelmux.conformance.session.execute import Outcome, from_dict
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.session.pytest_plugin import PROPERTY, WORKER
from kernelmux.conformance.session.xdist_schedulers import ByVariant, LongestFirst
from kernelmux.runner.interrupts import interrupts

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
        """end: when the run is over whatever is left, in seconds since the epoch."""
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
        return f"about {duration(max(min(seconds, self.end - time.time()), 0.0))} left"


def duration(seconds: float) -> str:
    """Seconds in words: 42 s, 3 min, 2.1 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Reporter:
    """A pytest plugin of the controlling process: gathers outcomes and shows them as they come.

    interrupted: by Ctrl-C, or because the reader of the output has gone (`closed`).
    """

    def __init__(
        self,
        items: list[Item],
        console: Console,
        seconds: dict[str, float] | None = None,
        workers: int = 1,
        together: bool = False,
        quiet: bool = False,
        verbose: bool = False,
        first: frozenset[str] = frozenset(),
        end: float = math.inf,
    ) -> None:
        """seconds: of items in earlier runs. together: whether all items of a variant are better run in one process, which
        is so without a GPU.

        quiet: failures alone, and no bar, which would stand in the way of a debugger. verbose: a line for every item.
        first: items that come before all others, in a run that is over at `end`, in seconds since the epoch.
        """
        self.items, self.first = {item.id: item for item in items}, first
        self.console, self.clock = console, Clock(items, seconds or {}, workers, end)
        self.together = together and scheduling.pays(self.items, workers)
        self.apart, self.seconds = not together, seconds or {}
        self.limited = end < math.inf
        self.outcomes: dict[str, Outcome] = {}
        self.failed = 0
        self.errors: list[str] = []
        self.interrupted = self.closed = False
        self.scratch: Path | None = None  # where worker processes leave their ids
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

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ByVariant | LongestFirst | None:
        """Items of one variant run in one process, unless some processes would then have too little to do.

        On GPUs any process runs any item, the longest first; in a run with a limit of time, in the order of the plan.
        """
        if self.together:
            return ByVariant(config, log, self.items, self.first)
        expected = {} if self.limited else {i.id: scheduling.expected(i, self.seconds) for i in self.items.values()}
        return LongestFirst(config, log, expected) if self.apart or self.limited else None

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self) -> Iterator[None]:
        """Worker processes are started with Ctrl-C blocked: it is for this process, which ends them."""
        self.bar.start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def pytest_unconfigure(self) -> None:
        with suppress(Closed):
            self.bar.stop()

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        if type(excinfo.value) in (KeyboardInterrupt, Closed):
            self.stop(excinfo.value)

    def stop(self, reason: BaseException) -> None:
        """The run ends now; what it has found so far is kept."""
        self.interrupted, self.closed = True, self.closed or isinstance(reason, Closed)
        self.kill()

    def kill(self) -> None:
        """End the worker processes."""
        for file in self.scratch.glob(f"*{WORKER}") if self.scratch else ():
            with suppress(OSError):
                os.kill(int(file.stem), signal.SIGKILL)  # in the middle of an item, which takes no notice of Ctrl-C

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2]
        told = dict(report.user_properties).get(PROPERTY)
        if self.interrupted:
            return
        if report.when == "call" and told:
            self._take(from_dict(json.loads(str(told))))
        elif report.failed and name in self.items:  # setup failed, or the worker process died
            self._take(Outcome(self.items[name], "failed", f"{name}: {report.longreprtext}"))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(str(report.longrepr))

    def pytest_internalerror(self, excrepr: Any) -> None:
        if interrupts.first is not None:  # Ctrl-C inside of a lock leaves as an error of that
            self.stop(KeyboardInterrupt())
        if not self.interrupted:
            self.errors.append(str(excrepr))

    def _take(self, outcome: Outcome) -> None:
        before = self.outcomes.get(outcome.item.id)
        self.failed += self._wrong(outcome) - (before is not None and self._wrong(before))
        self.outcomes[outcome.item.id] = outcome
        self.clock.finish(outcome)
        failed = f"[red]{self.failed} failed" if self.failed else ""
        self.bar.update(self.task, advance=1, failed=failed, last=outcome.item.id, left=str(self.clock))
        self.show(outcome)

    def _wrong(self, outcome: Outcome) -> bool:
        """Whether it counts as a failure of the run."""
        return outcome.status == "failed"

    def show(self, outcome: Outcome) -> None:
        """A failure at once and in full, unless its cause was shown before; of other items a line if that is asked for."""
        if outcome.status == "failed":
            self.console.print(f"FAILED {outcome.item.id}", style=FAILED, highlight=False)
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
        count = f"[{len(self.outcomes)}/{len(self.items)}{left}]"
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
        return f"{outcome.status} {outcome.item.id}: {outcome.text}"
    used = f", budget {outcome.budget:.2f}" if outcome.budget else ""
    return f"{outcome.status} {outcome.item.id} ({outcome.passed} trials{used}, {outcome.seconds:.1f} s)"


class MutantReporter(Reporter):
    """The same for broken kernels, which are to fail."""

    def __init__(self, broken: set[tuple[str, str, str]], *arguments: Any) -> None:
        """broken: operator, backend and variant of those that a check must catch."""
        super().__init__(*arguments)
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
