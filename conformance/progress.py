"""What is seen while a run goes on: a line with a bar in a terminal, a line per item elsewhere; failures at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kernelmux.conformance.execute import Outcome, from_dict
from kernelmux.conformance.plan import Item
from kernelmux.conformance.plugin import PROPERTY

MARKS = {"passed": "green", "failed": "bold red", "skipped": "dim", "expected": "yellow"}


class Reporter:
    """A pytest plugin of the controlling process: gathers outcomes and shows them as they come."""

    def __init__(self, items: list[Item], console: Console) -> None:
        self.items = {item.id: item for item in items}
        self.console = console
        self.outcomes: dict[str, Outcome] = {}
        self.errors: list[str] = []
        self.bar = Progress(
            TextColumn("conformance"), BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[failed]}"),
            TimeElapsedColumn(), TextColumn("[dim]{task.fields[last]}", markup=True),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self.task = self.bar.add_task("run", total=len(items), failed="", last="")

    def pytest_sessionstart(self) -> None:
        self.bar.start()

    def pytest_unconfigure(self) -> None:
        self.bar.stop()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2]
        told = dict(report.user_properties).get(PROPERTY)
        if report.when == "call" and told:
            self._take(from_dict(json.loads(str(told))))
        elif report.failed and name in self.items:  # setup failed, or the worker process died
            self._take(Outcome(self.items[name], "failed", f"{name}: {report.longreprtext}"))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(str(report.longrepr))

    def pytest_internalerror(self, excrepr: Any) -> None:
        self.errors.append(str(excrepr))

    def _take(self, outcome: Outcome) -> None:
        self.outcomes[outcome.item.id] = outcome
        failed = sum(o.status == "failed" for o in self.outcomes.values())
        self.bar.update(self.task, advance=1, failed=f"[red]{failed} failed" if failed else "", last=outcome.item.id)
        if outcome.status == "failed":
            self.console.print(f"FAILED {outcome.item.id}", style=MARKS["failed"], highlight=False)
            self.console.print(outcome.text + "\n", markup=False, highlight=False, soft_wrap=True)
        elif not self.console.is_terminal:
            self.console.print(line(outcome), markup=False, highlight=False, soft_wrap=True)


def line(outcome: Outcome) -> str:
    """An item in one line, for logs."""
    if outcome.status in ("skipped", "expected"):
        return f"{outcome.status} {outcome.item.id}: {outcome.text}"
    used = f", budget {outcome.budget:.2f}" if outcome.budget else ""
    return f"{outcome.status} {outcome.item.id} ({outcome.passed} trials{used}, {outcome.seconds:.1f} s)"
