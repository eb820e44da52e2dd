"""Runs the items of a plan under pytest, in as many processes as it pays, and says what came out."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from kernelmux.conformance import expected, gpus, matrix, mutation, page, report
from kernelmux.conformance.execute import Outcome
from kernelmux.conformance.options import Options
from kernelmux.conformance.plan import Item
from kernelmux.conformance.plugin import DONE, GPUS, PLAN, SECONDS
from kernelmux.conformance.progress import MutantReporter, Reporter, duration

OK, FAILED, USAGE = 0, 1, 2
PARALLEL_FROM = 20  # fewer items are done before the worker processes have imported torch
SHARE_GPU = 8  # processes on each GPU: most of the time goes into compiling, and a context takes half a GiB


@dataclass
class Found:
    """What a run found: outcomes in the order of its items, errors outside of all items, seconds that it took.

    interrupted: it was stopped; closed: because the reader of its output has gone. whole: every item has reported.
    """

    outcomes: list[Outcome]
    errors: list[str]
    seconds: float
    items: int
    interrupted: bool = False
    closed: bool = False

    @property
    def whole(self) -> bool:
        return len(self.outcomes) == self.items


def run(chosen: Options, items: list[Item], asked: str, exitfirst: bool, console: Console) -> Found:
    """Run the items; asked: how many worker processes, "auto" or "" (by the number of items)."""
    start, workers = time.perf_counter(), _workers(asked, len(items), chosen)
    seconds = report.durations(report.folder(chosen))
    reporter = _reporter(chosen, items, console, seconds, workers)
    with tempfile.TemporaryDirectory(prefix="kernelmux-conformance-") as scratch:
        reporter.scratch = Path(scratch)
        try:
            _rounds(chosen, items, reporter, Path(scratch), workers, exitfirst, seconds)
        except KeyboardInterrupt as reason:
            reporter.stop(reason)
    outcomes = [reporter.outcomes[i.id] for i in items if i.id in reporter.outcomes]
    errors = reporter.errors + _missing(chosen, items, outcomes, exitfirst or reporter.interrupted)
    took = time.perf_counter() - start
    return Found(outcomes, errors, took, len(items), reporter.interrupted, reporter.closed)


def _reporter(
    chosen: Options, items: list[Item], console: Console, seconds: dict[str, float], workers: int
) -> Reporter:
    together = chosen.device == "cpu"  # on a GPU there is less to share, and a process may lose its context
    if not chosen.mutants:
        return Reporter(items, console, seconds, workers, together, chosen.pdb)
    broken = {(m.op, m.backend, m.variant) for m in mutation.chosen(chosen) if m.check}
    return MutantReporter(broken, items, console, seconds, workers, together)


def _missing(chosen: Options, items: list[Item], outcomes: list[Outcome], stopped: bool) -> list[str]:
    """What is wrong with the run as a whole: items that did not report, entries about items that do not exist."""
    found = [f"{entry}: expected, but no such item" for entry in expected.stale((i.name for i in items), chosen)]
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
    exitfirst: bool,
    seconds: dict[str, float],
) -> None:
    """Run the items; where a kernel took the CUDA context with it, run what is left in new processes."""
    (scratch / "pytest.ini").write_text("[pytest]\n")  # no other configuration
    shared = gpus.visible() if chosen.device == "cuda" else []
    while True:
        before = len(reporter.outcomes)
        chosen.save(scratch / PLAN, **{DONE: sorted(reporter.outcomes), SECONDS: seconds, GPUS: shared})
        pytest.main(_pytest_arguments(scratch, workers, exitfirst, chosen), plugins=[reporter])
        progress = before < len(reporter.outcomes) < len(items)
        if exitfirst or reporter.interrupted or chosen.device == "cpu" or not progress:
            return


def _workers(asked: str, count: int, chosen: Options) -> int:
    if asked not in ("", "auto"):
        return int(asked)
    if count < PARALLEL_FROM and not asked:
        return 1
    cores = os.cpu_count() or 1
    return min(cores, SHARE_GPU * len(gpus.visible())) if chosen.device == "cuda" else cores


def _pytest_arguments(scratch: Path, workers: int, exitfirst: bool, chosen: Options) -> list[str]:
    path = str(scratch.resolve())
    quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "--noconftest"]
    own = ["-c", f"{path}/pytest.ini", "--rootdir", path, "-p", "kernelmux.conformance.plugin"]
    if chosen.pdb:
        return [f"{path}/{PLAN}", *quiet, *own, "-s", *(["-x"] if exitfirst else [])]
    apart = workers > 1 or chosen.device == "cuda"  # a lost CUDA context must not be this process's
    spread = ["-n", str(workers), "--dist", "load", "--maxschedchunk", "1"] if apart else []
    return [f"{path}/{PLAN}", *quiet, *own, *spread, *(["-x"] if exitfirst else [])]


def conclude(chosen: Options, found: Found, console: Console) -> int:
    """Write the reports, show what came out, and return the exit status."""
    title = _title(chosen, found)
    if found.outcomes:
        table, html = matrix.markdown(found.outcomes, title), page.html(chosen, found.outcomes, title)
        whole = chosen.everything and found.whole
        path = report.write(chosen, found.outcomes, table, html, found.seconds, whole)
    if not found.closed:
        if found.outcomes:
            matrix.show(console, found.outcomes, title)
            matrix.causes(console, found.outcomes)
        for error in found.errors:
            console.print(error, style="red", markup=False)
        if found.outcomes:
            at = path.with_name(report.names(chosen, whole)[2])
            console.print(f"\nresults: {at}; {path}", markup=False, soft_wrap=True)
    counts = report.counts(found.outcomes)
    if not found.interrupted and not counts["passed"] and not counts["failed"]:
        print("conformance: every item was skipped: nothing was checked", file=sys.stderr)
        return USAGE
    return FAILED if counts["failed"] or found.errors else OK


def _title(chosen: Options, found: Found) -> str:
    seeds = f"seeds {', '.join(map(str, chosen.seeds))}" if chosen.seeds else f"seed {chosen.seed}"
    where = report.machine(chosen, {o.item.backend for o in found.outcomes if not o.item.problem})
    known = f" (less for {len(chosen.verified)} variants that a GPU has verified)" if chosen.verified else ""
    return f"conformance, tier {chosen.tier}{known}, {seeds}, {where}, {duration(found.seconds)}"


def conclude_mutants(chosen: Options, found: Found, console: Console) -> int:
    """Show every mutant and the score; 1 unless every broken one was caught and no sound one was blamed."""
    if found.closed:
        return FAILED
    broken, caught, problems = mutation.conclude(chosen, found.outcomes, console)
    for error in found.errors:
        console.print(error, style="red", markup=False)
    console.print(f"mutation score: {caught} of {broken} broken kernels caught, {problems} problems")
    return FAILED if problems or found.errors else OK


def farewell(chosen: Options, found: Found, console: Console) -> None:
    """The last lines: how a run was stopped, and its total."""
    if found.closed:
        return
    counts = report.counts(found.outcomes)
    took = f"in {duration(found.seconds)}"
    if not chosen.mutants:
        total = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
        console.print(f"{total} {took}", style="bold", highlight=False)
    else:
        console.print(f"{len(found.outcomes)} items {took}", style="bold", highlight=False)
    if found.interrupted:
        print(f"conformance: interrupted after {len(found.outcomes)} of {found.items} items", file=sys.stderr)
