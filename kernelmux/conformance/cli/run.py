"""Runs the items of a plan under pytest, in as many processes as it pays, and says what came out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from kernelmux.conformance.options import Options
from kernelmux.conformance.report import artifacts, board, causes, integration, matrix, page
from kernelmux.conformance.report.progress import MutantReporter, Reporter, duration
from kernelmux.conformance.session import (
    expected_failures,
    leftovers,
    mutation,
    scheduling,
    tested_backends,
    time_budget,
    worker_devices,
)
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.session.pytest_plugin import BUDGET, DONE, GPUS, ITEMS, PLAN, SECONDS
from kernelmux.conformance.session.tested_backends import Tested
from kernelmux.registry.cli import target_device
from kernelmux.runner.interrupts import interrupts

OK, FAILED, USAGE = 0, 1, 2
PARALLEL_FROM = 20  # fewer items are done before the worker processes have imported torch
ALONE = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"  # a worker process of pytest-xdist is told so in no other way
PER_PROCESS = 40  # items for each process on a GPU: for fewer, processes that start together slow one another down
SHARE_GPU = 16  # processes on each GPU at most: most of the time goes into compiling
SHARE_BYTES = 2.5 * 2**30  # of a GPU for each of them: its context, what it remembers, and the tensors of a call


@dataclass
class RunOutcome:
    """What a run found: outcomes in the order of its items, errors outside of all items, seconds that it took.

    tested: the backends that were, and where. interrupted: it was stopped; closed: because the reader of its output has
    gone. whole: every item has reported.
    """

    outcomes: list[Outcome]
    errors: list[str]
    seconds: float
    items: int
    tested: Tested
    interrupted: bool = False
    closed: bool = False

    @property
    def whole(self) -> bool:
        return len(self.outcomes) == self.items


def run(chosen: Options, items: list[Item], asked: str, maxfail: int, console: Console) -> RunOutcome:
    """Run the items; asked: how many worker processes, "auto" or "" (by the number of items).

    maxfail: failures that end the run, 0 for any number.
    """
    start, workers = time.perf_counter(), _workers(asked, len(items), chosen)
    seconds = artifacts.durations(artifacts.folder(chosen))
    reporter = _reporter(chosen, items, console, seconds, workers)
    if not chosen.quiet:
        _announce(chosen, console, items, workers)
    with leftovers.folder() as place:
        reporter.scratch = place
        interrupts.before_the_end = reporter.kill
        try:
            _rounds(chosen, items, reporter, place, workers, maxfail, seconds)
        except KeyboardInterrupt as reason:
            reporter.stop(reason)
    outcomes = [reporter.outcomes[i.id] for i in items if i.id in reporter.outcomes]
    stopped = reporter.interrupted or 0 < maxfail <= reporter.failed
    errors = reporter.errors + _missing(chosen, items, outcomes, stopped)
    took = time.perf_counter() - start
    told = tested_backends.of(chosen, outcomes)
    return RunOutcome(outcomes, errors, took, len(items), told, reporter.interrupted, reporter.closed)


def _announce(chosen: Options, console: Console, items: list[Item], workers: int) -> None:
    """The first lines: what will not be tested; and of a log, where there is no bar, how much there is to do."""
    for text in tested_backends.of(chosen, ()).failures:
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        ops, processes = len({i.op for i in items}), f"{workers} process{'es' * (workers > 1)}"
        text = f"conformance: {len(items)} items of {ops} operator{'s' * (ops > 1)} in {processes}"
        console.print(text, highlight=False)


def _reporter(
    chosen: Options, items: list[Item], console: Console, seconds: dict[str, float], workers: int
) -> Reporter:
    quiet = chosen.pdb or chosen.quiet
    together = chosen.device == "cpu"  # on a GPU there is less to share, and a process may lose its context
    if not chosen.mutants:
        first, end = (
            frozenset(time_budget.required(items, seconds)) if chosen.minutes else frozenset(),
            time_budget.end(chosen),
        )
        return Reporter(items, console, seconds, workers, together, quiet, chosen.verbose, first, end)
    broken = {(m.op, m.backend, m.variant) for m in mutation.chosen(chosen) if m.check}
    return MutantReporter(broken, items, console, seconds, workers, together, quiet, chosen.verbose)


def _missing(chosen: Options, items: list[Item], outcomes: list[Outcome], stopped: bool) -> list[str]:
    """What is wrong with the run as a whole: items that did not report, entries about items that do not exist."""
    found = [
        f"{entry}: expected, but no such item" for entry in expected_failures.stale((i.name for i in items), chosen)
    ]
    lost = len(items) - len(outcomes)
    if lost and not stopped:
        found.append(f"{lost} of {len(items)} items did not report: the process or its GPU was lost")
    return found


def _rounds(
    chosen: Options,
    items: list[Item],
    reporter: Reporter,
    scratch: Path,
    workers: int,
    maxfail: int,
    seconds: dict[str, float],
) -> None:
    """Run the items; where a kernel took the CUDA context with it, run what is left in new processes."""
    (scratch / "pytest.ini").write_text("[pytest]\n")  # no other configuration
    shared = worker_devices.visible() if chosen.device == "cuda" else []
    planned = _planned(chosen, items, reporter.first, workers, seconds)
    while True:
        before = len(reporter.outcomes)
        chosen.save(scratch / PLAN, **{DONE: sorted(reporter.outcomes), SECONDS: seconds, GPUS: shared, **planned})
        with _no_other_plugins():
            left = maxfail and maxfail - reporter.failed
            pytest.main(_pytest_arguments(scratch, workers, left, chosen), plugins=[reporter])
        progress = before < len(reporter.outcomes) < len(items)
        stopped = reporter.interrupted or 0 < maxfail <= reporter.failed
        if stopped or chosen.device == "cpu" or not progress:
            return


def _planned(
    chosen: Options, items: list[Item], first: frozenset[str], workers: int, seconds: dict[str, float]
) -> dict[str, Any]:
    """The items in the order in which they begin, and the limit of time as the worker processes read it."""
    if chosen.minutes:
        found = time_budget.ordered(items, chosen, first, seconds)
        limit = [time_budget.end(chosen), workers, sorted(first)]
    else:
        found, limit = _in_order(items, chosen, seconds), None
    return {ITEMS: [asdict(item) for item in found], BUDGET: limit}


def _in_order(items: list[Item], chosen: Options, seconds: dict[str, float]) -> list[Item]:
    if chosen.device != "cuda":
        return _longest(items, seconds)
    parts = scheduling.parts(items) if chosen.records else [items]
    return [item for part in parts for item in scheduling.mixed(part, seconds)]


def _longest(items: list[Item], seconds: dict[str, float]) -> list[Item]:
    """Those that took longest begin first, where that is known."""
    return sorted(items, key=lambda i: -seconds.get(i.id, 1e9 if seconds else 0))


@contextmanager
def _no_other_plugins() -> Iterator[None]:
    """Plugins that happen to be installed stay out of the run, and out of its worker processes."""
    before = os.environ.get(ALONE)
    os.environ[ALONE] = "1"
    try:
        yield
    finally:
        os.environ.pop(ALONE) if before is None else os.environ.update({ALONE: before})


def _workers(asked: str, count: int, chosen: Options) -> int:
    if asked not in ("", "auto"):
        return int(asked)
    if count < PARALLEL_FROM and not asked:
        return 1
    if chosen.device != "cuda":
        return target_device.cores()
    cores = min(target_device.cores(), -(-count // PER_PROCESS))
    room = int(torch.cuda.get_device_properties(chosen.where).total_memory / SHARE_BYTES)
    return min(cores, max(1, min(SHARE_GPU, room)) * len(worker_devices.visible()))


def _pytest_arguments(scratch: Path, workers: int, maxfail: int, chosen: Options) -> list[str]:
    path = str(scratch.resolve())
    quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "--noconftest"]
    quiet += ["-p", "no:unraisableexception"]  # which collects garbage five times as each process ends
    own = ["-c", f"{path}/pytest.ini", "--rootdir", path, "-p", "kernelmux.conformance.session.pytest_plugin"]
    own += [f"--maxfail={maxfail}"]
    if chosen.pdb:
        return [f"{path}/{PLAN}", *quiet, *own, "-s"]
    apart = workers > 1 or chosen.device == "cuda"  # a lost CUDA context must not be this process's
    spread = ["-p", "xdist", "-n", str(workers), "--dist", "load", "--maxschedchunk", "1"] if apart else []
    return [f"{path}/{PLAN}", *quiet, *own, *spread]


def conclude(chosen: Options, found: RunOutcome, console: Console) -> int:
    """Write the reports, show what came out, and return the exit status."""
    whole = chosen.everything and found.whole
    if found.outcomes:
        _write(chosen, found, whole)
    if not found.closed:
        _show(chosen, found, console, whole)
    counts = artifacts.counts(found.outcomes)
    failed = counts["failed"] or found.errors or found.tested.missing
    if not failed and not found.interrupted and not counts["passed"]:
        print("conformance: every item was skipped: nothing was checked", file=sys.stderr)
        return USAGE
    return FAILED if failed else OK


def _write(chosen: Options, found: RunOutcome, whole: bool) -> None:
    """The reports of a run; each begins with what was tested where."""
    asked = artifacts.omissions(chosen, found.outcomes)
    head = f"{_title(chosen, found)}, {duration(found.seconds)}: {found.tested}{asked and f'; {asked}'}"
    table = board.markdown(board.of(found.outcomes))
    programs = integration.markdown(found.outcomes)
    parts = [
        f"## {head}",
        *found.tested.failures,
        table,
        *([programs] if programs else []),
        matrix.markdown(found.outcomes),
    ]
    text = "\n\n".join(parts)
    html = page.html(chosen, found.outcomes, found.tested, head)
    artifacts.write(chosen, found.outcomes, found.tested, text, html, found.seconds, whole)


def _show(chosen: Options, found: RunOutcome, console: Console, whole: bool) -> None:
    """The last screen: what came out by operator and backend, what failed, where the reports are; or errors alone."""
    if chosen.quiet:
        _errors(found, console)
        return
    path = artifacts.folder(chosen) / artifacts.names(chosen, whole)[2]
    if found.outcomes:
        console.print(f"\n{_title(chosen, found)}", style="bold", highlight=False)
        if chosen.verbose:
            matrix.show(console, found.outcomes)
        board.show(console, board.of(found.outcomes))
        if chosen.verbose or integration.CHECK in chosen.checks:
            integration.show(console, found.outcomes)
        if asked := artifacts.omissions(chosen, found.outcomes):
            console.print(asked, style="dim", highlight=False)
        causes.show(console, chosen, found.outcomes, str(path))
    for text in found.tested.notes:
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    _errors(found, console)
    if found.outcomes:
        console.print(f"\nreport: {path}", markup=False, highlight=False, soft_wrap=True)


def _errors(found: RunOutcome, console: Console) -> None:
    for error in found.errors:
        console.print(error, style="red", markup=False, highlight=False, soft_wrap=True)


def slowest(found: RunOutcome, count: int, console: Console) -> None:
    """Print the items that took longest, with their seconds, as pytest does; 0 for all."""
    every = sorted(found.outcomes, key=lambda o: -o.seconds)[: count or None]
    if found.closed or not every:
        return
    console.print(f"\nslowest {len(every)} item{'s' * (len(every) > 1)}", style="bold", highlight=False)
    for outcome in every:
        console.print(f"{outcome.seconds:.2f}s {outcome.item.id}", markup=False, highlight=False, soft_wrap=True)


def _title(chosen: Options, found: RunOutcome) -> str:
    seeds = f"seeds {', '.join(map(str, chosen.seeds))}" if chosen.seeds else f"seed {chosen.seed}"
    known = f" (less for {len(chosen.verified)} variants that a GPU has verified)" if chosen.verified else ""
    return f"conformance, tier {chosen.tier}{known}, {seeds}"


def conclude_mutants(chosen: Options, found: RunOutcome, console: Console) -> int:
    """Show every mutant and the score; 1 unless every broken one was caught and no sound one was blamed."""
    if found.closed:
        return FAILED
    broken, caught, problems = mutation.conclude(chosen, found.outcomes, console)
    _errors(found, console)
    console.print(f"mutation score: {caught} of {broken} broken kernels caught, {problems} problems")
    return FAILED if problems or found.errors else OK


def farewell(chosen: Options, found: RunOutcome, console: Console) -> None:
    """The last lines: the total and what was tested, how a run was stopped, which package is missing."""
    if found.closed:
        return
    took = f"in {duration(found.seconds)}"
    if not chosen.mutants:
        console.print(_total(found, took), style="bold", markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(f"{len(found.outcomes)} items {took}", style="bold", highlight=False)
    if found.interrupted:
        print(f"conformance: interrupted after {len(found.outcomes)} of {found.items} items", file=sys.stderr)
    for text in found.tested.failures:
        line = f"conformance: failed: {text}"
        Console(stderr=True).print(line, style="bold red", markup=False, highlight=False, soft_wrap=True)


def _total(found: RunOutcome, took: str) -> str:
    """Items by what came out, and what was tested."""
    counts = artifacts.counts(found.outcomes)
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped {took}: {found.tested}"
