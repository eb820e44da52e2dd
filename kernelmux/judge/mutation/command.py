"""`kernelmux judge --mutate N --seed S`: makes N broken kernels, asks the suite, and says which it lets live."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kernelmux.conformance.source_constants import reader
from kernelmux.judge.mutation import inputs, trial
from kernelmux.judge.mutation.change import KINDS
from kernelmux.judge.mutation.population import MutatedKernel, Population
from kernelmux.judge.mutation.trial import KILLED, LATE, SURVIVED, THROWN_AWAY, MutationLimits, TrialRow
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError
from kernelmux.runner.interrupts import INTERRUPTED, interrupts
from kernelmux.runner.item import WorkItem
from kernelmux.runner.machine import Workers, available_cores
from kernelmux.runner.run import RunReport, Usage, execute

GOAL = 0.95  # of the broken kernels have to die
MOST = 40  # that are thrown away for one that stays
LIMITS = MutationLimits()
FOUND = 60  # characters of what a witness shows, in a file
CONSTANTS = 12  # of a source, whose sizes a search asks


@dataclass
class MutationRun:
    """The mutants of a run with what became of each, those that were thrown away among them."""

    seed: int
    wanted: int
    rows: list[tuple[MutatedKernel, TrialRow]] = field(default_factory=list)

    def of(self, *outcomes: str) -> list[tuple[MutatedKernel, TrialRow]]:
        return [(kernel, row) for kernel, row in self.rows if row.outcome in outcomes]

    @property
    def share(self) -> float:
        """Of those that were shown wrong and judged, how many died; 0 without any."""
        judged = len(self.of(KILLED, SURVIVED))
        return len(self.of(KILLED)) / judged if judged else 0.0


class MutationSuite:
    """The driver's side, as `runner.item.Suite` says.

    A mutant that is thrown away is followed by the next of its number, one that is not by one of the next number: to look
    for all changes of all kernels takes a minute.
    """

    name, serve = "kernelmux judge --mutate", trial.SERVE

    def __init__(self, population: Population, run: MutationRun, console: Console, limits: MutationLimits) -> None:
        self.setup: Any = {"limits": asdict(limits), "folder": None}
        self.limit = (
            limits.suite + 4 * limits.search + 2 * limits.item
        )  # of one mutant, after which its worker is ended
        self.population, self.run, self.console = population, run, console
        self.drawn: dict[str, MutatedKernel] = {}
        self.begun = 0  # numbers
        columns = (TextColumn("{task.description}"), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.task = self.bar.add_task("making mutants")

    def more(self, count: int = 1) -> list[WorkItem]:
        """The first mutants of so many numbers more, as far as the run has them."""
        first, self.begun = self.begun, min(self.run.wanted, self.begun + count)
        return [self.item(number, 0) for number in range(first, self.begun)]

    def item(self, number: int, attempt: int) -> WorkItem:
        """The mutant of a number, after so many that were thrown away."""
        kernel = self.population.draw(number, attempt)
        self.drawn[kernel.id] = kernel
        work = {
            "kernel": kernel.as_dict(),
            "seed": f"{self.population.seed}/{kernel.id}",
            "sizes": sizes(kernel),
        }
        return WorkItem(kernel.id, work, rank=number, limit=self.limit)

    def begins(self, item: WorkItem) -> None:
        """Nothing is shown of it."""

    def takes(self, item: WorkItem, row: Any) -> Iterable[WorkItem]:
        """Keep the row; the next attempt follows one that was thrown away."""
        kernel = self.drawn[item.id]
        self.run.rows.append((kernel, TrialRow(**row)))
        self._show(kernel, TrialRow(**row))
        if row["outcome"] in THROWN_AWAY and kernel.attempt + 1 < MOST:
            return [self.item(kernel.number, kernel.attempt + 1)]
        return self.more()

    def lost(self, item: WorkItem, reason: str) -> Any:
        """A worker ends by nothing that a mutant does, which has a process of its own: nothing is known of it."""
        return TrialRow(LATE, reason[:200]).as_dict()

    def late(self, item: WorkItem) -> Any:
        return TrialRow(LATE).as_dict()

    def failed(self, row: Any) -> bool:
        return False

    def _show(self, kernel: MutatedKernel, row: TrialRow) -> None:
        killed, survived = len(self.run.of(KILLED)), len(self.run.of(SURVIVED))
        away = len(self.run.of(*THROWN_AWAY))
        told = f"{killed} killed, {survived} survived of {self.run.wanted}; {away} thrown away"
        self.bar.update(self.task, description=told)
        if not self.console.is_terminal and row.outcome not in THROWN_AWAY:
            by = f" by {row.check}" if row.check else ""
            line = f"[{killed + survived}/{self.run.wanted}] {row.outcome}{by}: {kernel.label} {kernel.change.kind}"
            self.console.print(f"{line} {kernel.change.place} ({row.seconds:g} s)", markup=False, soft_wrap=True)


def sizes(kernel: MutatedKernel) -> list[int]:
    """The lengths that a search for an input tries first."""
    numbers = [int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", f"{kernel.change.before} {kernel.change.after}")]
    fn = registered.variants(kernel.backend, kernel.op)[kernel.variant].fn
    found = [c.value for c in reader.constants(fn, registered.folder(kernel.backend))[:CONSTANTS]]
    return inputs.sizes(numbers, found)


def command(
    count: int,
    seed: int | None,
    ops: Sequence[str],
    backends: Sequence[str],
    processes: int,
    file: str | None,
    limits: MutationLimits = LIMITS,
) -> int:
    """Make and judge `count` mutants; 0 if at least 95 % of them died, 1 if not, 130 for Ctrl-C.

    ops, backends: of these kernels, () for all. processes: 0 for one per core. file: gets the run as JSON. ArgumentError
    for a count below 1, or if there is no such kernel.
    """
    if count < 1:
        raise ArgumentError(f"--mutate: expected 1 or more, got {count}")
    interrupts.listen("judge")
    console = Console(highlight=False)
    run = MutationRun(seed or 0, count)
    suite = MutationSuite(Population(ops, backends, run.seed), run, console, limits)
    workers = Workers(cpu=True, most=processes or available_cores())
    asked = {"count": count, "seed": run.seed, "ops": list(ops), "backends": list(backends)}
    with tempfile.TemporaryDirectory(prefix="kernelmux-mutants-") as folder, suite.bar:
        try:
            suite.setup["folder"] = folder
            items = suite.more(2 * (workers.most or 1))
            report = execute(suite, items, workers, Path(folder), asked)
        except KeyboardInterrupt:
            report = RunReport(interrupted=True)
    run.rows.sort(key=lambda pair: (pair[0].number, pair[0].attempt))
    show(run, console)
    for error in report.errors:
        console.print(error, markup=False, soft_wrap=True)
    if file:
        write(run, report.usage, ops, backends, Path(file))
    if report.interrupted:
        return INTERRUPTED
    return int(bool(report.errors) or run.share < GOAL)


def show(run: MutationRun, console: Console) -> None:
    """A row for each kind of change, a line for each backend, the checks that killed, every survivor with its input."""
    table = Table(
        "change", "drawn", "no kernel", "not shown wrong", "late", "shown wrong", "killed", "survived", box=None
    )
    for kind in (k for k in KINDS if any(kernel.change.kind == k for kernel, _ in run.rows)):
        outcomes = Counter(row.outcome for kernel, row in run.rows if kernel.change.kind == kind)
        shown = outcomes[KILLED] + outcomes[SURVIVED]
        counts = (outcomes.total(), *(outcomes[o] for o in (trial.NO_KERNEL, trial.EQUIVALENT, LATE)))
        table.add_row(kind, *map(str, (*counts, shown, outcomes[KILLED], outcomes[SURVIVED])))
    console.print(table)
    for backend in sorted({kernel.backend for kernel, _ in run.of(KILLED, SURVIVED)}):
        own = [row.outcome for kernel, row in run.of(KILLED, SURVIVED) if kernel.backend == backend]
        console.print(f"{backend}: {own.count(KILLED)} of {len(own)} killed", markup=False)
    checks = Counter(row.check for _, row in run.of(KILLED))
    if checks:
        told = ", ".join(f"{check} {number}" for check, number in checks.most_common())
        console.print(f"killed by: {told}", markup=False, soft_wrap=True)
    for kernel, row in run.of(SURVIVED):
        change = kernel.change
        console.print(f"survived: {kernel.label} {change.kind} {change.place}", markup=False, soft_wrap=True)
        for line in (f"- {change.before}", f"+ {change.after}", f"shown by {row.witness}: {row.found}"):
            console.print(f"    {line}", markup=False, soft_wrap=True)
    killed, judged = len(run.of(KILLED)), len(run.of(KILLED, SURVIVED))
    away = f"{len(run.of(*THROWN_AWAY))} thrown away"
    console.print(
        f"{killed} of {judged} broken kernels killed ({run.share:.1%}), {away}, seed {run.seed}", markup=False
    )


def write(run: MutationRun, usage: Usage, ops: Sequence[str], backends: Sequence[str], path: Path) -> None:
    """The run as JSON: a head, and a row per line."""
    names = [*(["--op", ",".join(ops)] if ops else []), *(["--backend", *backends] if backends else [])]
    about = {
        "gpu": "none: emulated on a CPU",
        "versions": {"python": platform.python_version(), **_versions()},
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["kernelmux judge --mutate", str(run.wanted), "--seed", str(run.seed), *names]),
        "processes": usage.workers,
        "seconds": round(usage.seconds),
    }
    away = Counter(row.outcome for _, row in run.of(*THROWN_AWAY))
    head = {
        "what": "kernels of this project with a change each that a search shows wrong, and what tier ci said on a CPU",
        "run": about,
        "killed": len(run.of(KILLED)),
        "survived": len(run.of(SURVIVED)),
        "thrown away": dict(away),
    }
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    rows = [f"  {json.dumps(_row(kernel, row))}" for kernel, row in run.rows]
    path.write_text("\n".join(["{", *lines, ' "rows": [', ",\n".join(rows), " ]", "}"]) + "\n", encoding="utf-8")


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _row(kernel: MutatedKernel, row: TrialRow) -> dict[str, Any]:
    """Of one that was thrown away, what the seed does not give again; of a survivor all that shows it."""
    change = kernel.change
    if row.outcome in THROWN_AWAY:
        return {"id": kernel.id, "outcome": row.outcome}
    about = {
        "id": kernel.id,
        "outcome": row.outcome,
        "kernel": kernel.label,
        "kind": change.kind,
        "place": change.place,
    }
    shown = {"witness": row.witness, "found": row.found[:FOUND]}
    if row.outcome == KILLED:
        return {**about, **shown, "check": row.check}
    return {**about, "before": change.before, "after": change.after, **shown, "asked": row.asked}
