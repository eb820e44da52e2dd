"""The default report: what a machine can do, in minutes and on one screen."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console

from kernelmux.perf.cli import command
from kernelmux.perf.emulated import moved, resources
from kernelmux.perf.planning import brief
from kernelmux.perf.planning.plan import BASELINE
from kernelmux.perf.planning.time_budget import TimeBudget
from kernelmux.perf.record import history
from kernelmux.perf.record.history import GpuRecord
from kernelmux.perf.record.run_file import Results
from kernelmux.perf.report import screen
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.session.run import WorkerReports
from kernelmux.perf.timing import overhead
from kernelmux.perf.wording import wording
from kernelmux.registry.util import cards

HANDFUL = ("softmax", "matmul", "rms_norm", "gelu", "add", "attention")  # whose host time is measured on a CPU


def run(console: Console, options: PerfOptions, args: argparse.Namespace, told: str, limit: TimeBudget) -> int:
    """Time what the default report needs, show and write it, and return the exit status."""
    rows = brief.report(options)
    count = sum(not row.problem for row in rows)
    if not console.is_terminal:
        console.print(f"{count} rows in at most {limit.minutes:g} minutes; --every-row times all there are")
    return command.reported(
        console, rows, options, args, False, lambda one, given: _one(console, one, options, given, told, limit)
    )


def _one(
    console: Console,
    outcome: WorkerReports,
    options: PerfOptions,
    args: argparse.Namespace,
    told: str,
    limit: TimeBudget,
) -> int:
    measured = command.results_of(outcome, told, options)
    _introduce(console, measured)
    if options.device == "cuda":
        screen.on_gpu(console, measured)
    else:
        measured = _on_cpu(console, measured, options, limit)
    _say(console, wording.left_out(measured))
    earlier = command.write(console, measured, args)
    return command.conclude(console, measured, earlier, False, outcome.interrupted)


def _introduce(console: Console, measured: Results) -> None:
    told = f"{wording.where(measured.machine)}; {wording.tested(measured)}"
    console.print(told, style="bold", markup=False, soft_wrap=True)
    if measured.ceilings:
        console.print(wording.main_roofs(measured.ceilings), markup=False, highlight=False)


def _on_cpu(console: Console, measured: Results, options: PerfOptions, limit: TimeBudget) -> Results:
    """What a machine without a GPU can say of the kernels, and what is on record of them."""
    screen.on_cpu(console, measured, largest(history.recorded()))
    with console.status("host time of calls"):
        costs = overhead.measure(HANDFUL, (BASELINE,), "cpu")
    _say(console, screen.overhead(costs))
    needs, left = resources.until(console, options, limit.end)
    _say(console, screen.resources(needs, left, cards.emulated().arch))
    return replace(measured, overhead=costs, resources=needs, moved=moved.known(()))


def largest(known: tuple[GpuRecord, ...]) -> GpuRecord | None:
    """The record with the most rows."""
    return max(known, key=lambda record: len(record.rows), default=None)


def _say(console: Console, lines: Iterator[str] | tuple[str, ...]) -> None:
    for line in lines:
        style = "red" if line.startswith("FAILED") else None
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
