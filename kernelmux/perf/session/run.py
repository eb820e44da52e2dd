"""Runs the rows of a plan by the common runner, and takes in what its workers report, apart for each kind of card."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelmux.perf import peers
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.codec import decode, encode
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.roofline import Ceilings
from kernelmux.perf.rows.row_result import FAILED, LATE, SKIPPED, RowResult
from kernelmux.perf.session.items import Minutes, items, minutes, timing, workers
from kernelmux.perf.session.pytest_plugin import COMPILE
from kernelmux.perf.timing import inputs
from kernelmux.registry.errors import ArgumentError
from kernelmux.runner import machine
from kernelmux.runner.item import WorkItem
from kernelmux.runner.results import folder as writable_folder
from kernelmux.runner.run import RunReport, execute

TIME_UP = "the minutes of this run were over"
TOO_LONG = "compiling it ahead took more than the {:.0f} s that there were for all"
UNASKED = ("out", "jobs", "until", "row_limit")  # options that change no row: a run goes on with others

Watch = Callable[[str | RowResult], None]  # sees what begins, by name, and the result of each row that ended


@dataclass
class WorkerReports:
    """What the workers reported of one kind of card; errors: why rows could not be run at all.

    seconds: of the parts of the run. compiled: of each row that was compiled ahead, by its id. usage: how busy the
    workers were. benchmark: pytest-benchmark's file. card: its kind, "" for that of this machine.
    """

    rows: list[RowResult] = field(default_factory=list)
    machine: MeasuringMachine = field(default_factory=MeasuringMachine)
    ceilings: Ceilings | None = None
    errors: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    compiled: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False
    usage: str = ""
    benchmark: dict[str, Any] = field(default_factory=dict)
    card: str = ""


@dataclass(frozen=True)
class RunPlace:
    """Where a run runs, and whether it goes on with the one before it; see `runner.run.execute`."""

    resume: bool = False
    cluster: str = ""
    on: tuple[str, ...] = ()


HERE = RunPlace()


class PerfSuite:
    """The driver's side (`runner.item.Suite`). items: what is to be done at first. reports: by card."""

    name = "perf"
    serve = "kernelmux.perf.session.pytest_plugin:serve"

    def __init__(self, rows: list[Row], options: PerfOptions, limit: Minutes, watch: Watch) -> None:
        found = [inputs.planned(row).products_of for row in rows] if options.until_known else []
        formats = dict.fromkeys(name for names in found for name in names)
        self.setup = {"options": options.as_dict(), "formats": [*formats]}
        self.rows, self.options, self.limit, self.watch = rows, options, limit, watch
        self.items = items(rows, options)
        self.uncompiled: dict[tuple[str, str], set[str]] = {}  # ids, by card and group
        self.reports: dict[str, WorkerReports] = {}
        self.compiling: list[float] = []  # when the first began and the last ended
        self.seconds = limit.compile_until - time.monotonic()

    def begins(self, item: WorkItem) -> None:
        if item.work[0] == COMPILE:
            self.compiling = [*self.compiling[:1], time.monotonic()]
            self.watch(f"compiling {_row(item).id}")
        else:
            self.watch(_row(item).id)

    def takes(self, item: WorkItem, row: Any) -> list[WorkItem]:
        """Once a group is compiled, its rows are timed."""
        if item.work[0] == COMPILE:
            self._compiled(item, row)
            return self._ready(item)
        report = self._report(item)
        if "machine" in row:
            report.machine = decode(MeasuringMachine, row["machine"], "machine")
        if row.get("ceilings"):
            report.ceilings = decode(Ceilings, row["ceilings"], "ceilings")
        report.seconds |= row.get("seconds", {})
        if told := row.get("benchmark"):
            known = report.benchmark or {**told, "benchmarks": []}
            report.benchmark = {**known, "benchmarks": [*known["benchmarks"], *told["benchmarks"]]}
        result = decode(RowResult, row["result"], "row")
        report.rows.append(result)
        self.watch(result)
        return []

    def _ready(self, item: WorkItem) -> list[WorkItem]:
        """The items that time a group, behind the last of it to be compiled; where the host time is asked for, all groups,
        behind the last of all. In a cluster each is there for each card."""
        row, every = _row(item), not self.options.brief
        name, group = f"{COMPILE}:{row.id}", "" if every else item.group
        left = self.uncompiled.setdefault(
            (item.card, group), {one.id for one in self.items if every or one.group == group}
        )
        left.discard(name)
        if left:
            return []
        card = item.id.removeprefix(name)
        found = timing([one for one in self.rows if every or one.group == row.group], self.rows, self.options)
        return [replace(one, id=one.id + card, card=item.card) for one in found]

    def _compiled(self, item: WorkItem, row: Any) -> None:
        self.compiling = [*self.compiling[:1], time.monotonic()]
        if "compiled" in row:
            self._report(item).compiled[_row(item).id] = row["compiled"]
        elif row.get("stopped") and self.options.until:
            self.limit.late.add(item.id.removeprefix(f"{COMPILE}:"))

    def _report(self, item: WorkItem) -> WorkerReports:
        return self.reports.setdefault(item.card, WorkerReports(card=item.card))

    def lost(self, item: WorkItem, reason: str) -> Any:
        """What ended a compiler before its limit is the timing worker's to report; at the limit the row is late."""
        if item.work[0] == COMPILE:
            return {"lost": reason, "stopped": not item.cpu and time.monotonic() >= self.limit.compile_until}
        row = _row(item)
        told = f"the worker process did not survive it: {reason}"
        return {"result": encode(row.not_timed(SKIPPED if row.backend == peers.NAME else FAILED, told))}

    def late(self, item: WorkItem) -> Any:
        if item.work[0] == COMPILE:
            return {"left": "there was no time to compile it ahead"}
        told = TOO_LONG.format(self.seconds) if item.id in self.limit.late else TIME_UP
        return {"result": encode(_row(item).not_timed(LATE, told))}

    def failed(self, row: Any) -> bool:
        return "result" in row and row["result"]["status"] == FAILED


def _row(item: WorkItem) -> Row:
    return decode(Row, item.work[1], item.id)


def run(rows: list[Row], options: PerfOptions, watch: Watch, where: RunPlace = HERE) -> list[WorkerReports]:
    """Run the rows, on one kind of card after another if a cluster has several; a report of each, at least one.

    `options.out` gets the rows as they come, the logs of the workers and pytest-benchmark's file. Ctrl-C ends the run
    with the rows it has. ArgumentError for what cannot be gone on with.
    """
    fit, out = [row for row in rows if not row.problem], Path(options.out)
    limit = minutes(options)
    suite = PerfSuite(fit, options, limit, watch)
    home, begun = writable_folder(out), time.monotonic()
    asked = {"options": {k: v for k, v in options.as_dict().items() if k not in UNASKED}, "rows": [r.id for r in fit]}
    if fit and options.device == "cuda" and not (where.cluster or machine.visible_gpus()):
        raise ArgumentError("--device cuda: NVML names no GPU: pip install nvidia-ml-py, or look at nvidia-smi")
    done = RunReport()
    if fit:
        told = (home, asked, where.resume, limit, where.cluster, where.on)
        done = execute(suite, suite.items, workers(options, suite.items), *told)
    seconds = {"timing, with the start of its process": time.monotonic() - begun}
    if len(suite.compiling) > 1:
        seconds = {"compiling ahead": suite.compiling[1] - suite.compiling[0], **seconds}
    found = [_whole(report, rows, done, seconds) for report in suite.reports.values() or [WorkerReports()]]
    for report in found:
        if report.benchmark:
            output_files.write(out / _name(report, len(found)), json.dumps(report.benchmark, indent=1))
    return found


def _name(report: WorkerReports, reports: int) -> str:
    return f"benchmark-{report.card}.json" if reports > 1 else "benchmark.json"


def _whole(report: WorkerReports, rows: list[Row], done: RunReport, seconds: Mapping[str, float]) -> WorkerReports:
    """The report with the rows that cannot run, then those that did in the order of the plan."""
    broken = [row.not_timed(FAILED if row.broken else SKIPPED, row.problem) for row in rows if row.problem]
    ended = {(*row.key, row.again): row for row in report.rows}
    ordered = [ended[key] for row in rows if (key := (*row.key, row.again)) in ended]
    return replace(
        report,
        rows=[*broken, *ordered],
        errors=[*report.errors, *done.errors],
        seconds={**seconds, **report.seconds},
        interrupted=done.interrupted,
        usage=str(done.usage) if done.usage.workers and done.usage.seconds else "",
    )
