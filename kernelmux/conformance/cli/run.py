"""Runs the items of a plan in as many processes as it pays, and says what came out."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from kernelmux.conformance.cli.suite import ConformanceSuite, planned
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import (
    artifacts,
    board,
    causes,
    integration,
    matrix,
    not_reached,
    page,
    trials_left_out,
)
from kernelmux.conformance.report.progress import Closed, MutantReporter, Reporter, duration
from kernelmux.conformance.session import expected_failures, mutation, pytest_plugin, tested_backends
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.session.tested_backends import Tested
from kernelmux.runner import machine
from kernelmux.runner.interrupts import interrupts
from kernelmux.runner.machine import Workers
from kernelmux.runner.run import EndRun, RunReport, TimeLimit, Usage, execute

OK, FAILED, USAGE = 0, 1, 2
PARALLEL_FROM = 20  # fewer items are done before the worker processes have imported torch
# Items of a run for each process on each GPU: for fewer, processes that start together slow one another down.
PER_PROCESS = 40
SHARE_GPU = 16  # processes on each GPU at most: most of the time goes into compiling
SHARE_BYTES = 2.5 * 2**30  # of a GPU for each of them: its context, what it remembers, and the tensors of a call
# Of the options, what shows or keeps a run and changes no row: a run may go on with others.
SHOWN = ("out", "program", "verbose", "quiet", "pdb")


@dataclass(frozen=True)
class Ways:
    """How a run goes. workers: how many processes, "auto" or "" (by the number of items).

    maxfail: failures that end it, 0 for any number. resume: with the rows of the run before. cluster, on: as for
    `runner.run.execute`. begun: when the process began, by time.monotonic: from there its minutes count.
    """

    workers: str = ""
    maxfail: int = 0
    resume: bool = False
    cluster: str = ""
    on: tuple[str, ...] = ()
    begun: float = field(default_factory=time.monotonic)


@dataclass
class RunOutcome:
    """What a run found: outcomes in the order of its items, errors outside of all items, seconds that it took.

    items: how many outcomes there were to be. tested: the backends that were, and where. interrupted: it was stopped;
    closed: because the reader of its output has gone. whole: every item has reported.
    """

    outcomes: list[Outcome]
    errors: list[str]
    seconds: float
    items: int
    tested: Tested
    interrupted: bool = False
    closed: bool = False
    usage: Usage = field(default_factory=Usage)

    @property
    def whole(self) -> bool:
        return len(self.outcomes) == self.items


def run(chosen: Options, items: list[Item], ways: Ways, console: Console) -> RunOutcome:
    """Run the items; ArgumentError where that cannot begin, as `runner.run.execute` says."""
    began = time.perf_counter()
    seconds = artifacts.durations(artifacts.folder(chosen))
    workers = _workers(ways, len(items), chosen)
    reporter = _reporter(chosen, items, console, seconds, workers, _end(chosen, ways))
    if not chosen.quiet:
        _announce(chosen, console, items, "on a cluster" if ways.cluster else _counted(workers, "process", "es"))
    with reporter.shown():
        report = _execute(chosen, items, ways, reporter, workers, seconds)
    return _outcome(chosen, items, ways, reporter, report, time.perf_counter() - began)


def _execute(
    chosen: Options, items: list[Item], ways: Ways, reporter: Reporter, workers: int, seconds: dict[str, float]
) -> RunReport:
    apart = bool(ways.cluster) or (not chosen.pdb and (workers > 1 or chosen.device == "cuda"))
    sharers, many, memory = _shared(ways, workers) if apart and chosen.device == "cuda" else (1, 0, 0)
    setup = pytest_plugin.setup(chosen, sharers, captured=not chosen.pdb and not apart)
    plan, required = planned(chosen, items, seconds, workers, many, memory)
    suite = ConformanceSuite(chosen, reporter, ways.maxfail, setup)
    asked = {name: value for name, value in chosen.as_dict().items() if name not in SHOWN}
    try:
        return execute(
            suite,
            plan,
            _processes(chosen, ways, workers) if apart else None,
            artifacts.folder(chosen).resolve(),
            {**asked, "on": list(ways.on)},
            ways.resume,
            TimeLimit(_end(chosen, ways), required),
            ways.cluster,
            ways.on,
        )
    except EndRun:  # by what the run before had found
        return RunReport()
    except (Exception, KeyboardInterrupt) as reason:  # Ctrl-C inside of a lock leaves as an error of that
        if not isinstance(reason, KeyboardInterrupt) and interrupts.first is None:
            raise
        reporter.closed = reporter.closed or isinstance(reason, Closed)
        return RunReport(interrupted=True)


def _shared(ways: Ways, workers: int) -> tuple[int, int, int]:
    """How many processes share a GPU, how many GPUs an item may have, and the bytes of one, 0 where that is not known."""
    if ways.cluster:
        return SHARE_GPU, 1, 0
    found = machine.visible_gpus()
    return math.ceil(workers / max(1, len(found))), max(1, len(found)), min((g.memory for g in found), default=0)


def _outcome(
    chosen: Options, items: list[Item], ways: Ways, reporter: Reporter, report: RunReport, took: float
) -> RunOutcome:
    order = {item.id: place for place, item in enumerate(items)}
    outcomes = sorted(reporter.outcomes.values(), key=lambda o: (o.card, order[o.item.id]))
    told = tested_backends.of(chosen, outcomes)
    if len(reporter.cards - {""}) == 1:  # then it need not be said
        outcomes = [replace(outcome, card="") for outcome in outcomes]
    stopped = report.interrupted or 0 < ways.maxfail <= reporter.failed
    errors = [*report.errors, *_missing(chosen, items, reporter.total - len(outcomes), stopped)]
    errors += not_reached.failures(chosen, items, outcomes)
    return RunOutcome(outcomes, errors, took, reporter.total, told, report.interrupted, reporter.closed, report.usage)


def _end(chosen: Options, ways: Ways) -> float:
    """When the run is over, by time.monotonic."""
    return ways.begun + 60 * chosen.minutes if chosen.minutes else math.inf


def _announce(chosen: Options, console: Console, items: list[Item], where: str) -> None:
    """The first lines: what will not be tested; and of a log, where there is no bar, how much there is to do."""
    for text in tested_backends.of(chosen, ()).failures:
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        ops = _counted(len({i.op for i in items}), "operator")
        place = where if where.startswith("on ") else f"in {where}"
        console.print(f"conformance: {len(items)} items of {ops} {place}", highlight=False)


def _counted(number: int, word: str, more: str = "s") -> str:
    return f"{number} {word}{more * (number > 1)}"


def _reporter(
    chosen: Options, items: list[Item], console: Console, seconds: dict[str, float], workers: int, end: float
) -> Reporter:
    more: dict[str, Any] = {"quiet": chosen.pdb or chosen.quiet, "verbose": chosen.verbose}
    if not chosen.mutants:
        return Reporter(items, console, seconds, workers, end=end, **more)
    broken = {(m.op, m.backend, m.variant) for m in mutation.chosen(chosen) if m.check}
    return MutantReporter(broken, items, console, seconds, workers, **more)


def _missing(chosen: Options, items: list[Item], lost: int, stopped: bool) -> list[str]:
    """What is wrong with the run as a whole: items that did not report, entries about items that do not exist."""
    found = [
        f"{entry}: expected, but no such item" for entry in expected_failures.stale((i.name for i in items), chosen)
    ]
    if lost and not stopped:
        found.append(f"{lost} of {len(items)} items did not report: no worker process was left for them")
    return found


def _workers(ways: Ways, count: int, chosen: Options) -> int:
    """How many worker processes this machine gets; for 1 without a GPU there is none."""
    if ways.workers not in ("", "auto"):
        return int(ways.workers)
    if count < PARALLEL_FROM and not ways.workers:
        return 1
    if chosen.device != "cuda":
        return machine.available_cores()
    shared = machine.visible_gpus()
    room = min((int(gpu.memory / SHARE_BYTES) for gpu in shared), default=1)
    cores = min(machine.available_cores(), -(-count // PER_PROCESS) * max(1, len(shared)))
    return min(cores, max(1, min(SHARE_GPU, room)) * max(1, len(shared)))


def _processes(chosen: Options, ways: Ways, workers: int) -> Workers:
    """What the runner starts; on a cluster each node as many as it has cores and memory for, unless a number is given."""
    most = (int(ways.workers) if ways.workers.isdigit() else None) if ways.cluster else workers
    return Workers(gpu=int(SHARE_BYTES), most=most) if chosen.device == "cuda" else Workers(cpu=True, most=most)


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
        *found.tested.remarks,
        table,
        *([programs] if programs else []),
        matrix.markdown(found.outcomes),
        *filter(None, [trials_left_out.markdown(found.outcomes), not_reached.markdown(chosen, found.outcomes)]),
        f"{found.usage}.",
    ]
    text = "\n\n".join(parts)
    html = page.html(chosen, found.outcomes, found.tested, head, str(found.usage))
    artifacts.write(chosen, found.outcomes, found.tested, text, html, found.seconds, whole, _usage(found.usage))


def _usage(usage: Usage) -> dict[str, Any]:
    """Seconds from the first item to the last, of all workers together those with an item, and what others waited for."""
    waits = {why: round(seconds, 2) for why, seconds in usage.waits.items()}
    first = {"until_first": round(usage.until_first, 2), "seconds": round(usage.seconds, 2)}
    return {"workers": usage.workers, **first, "busy": round(usage.busy, 2), "waits": waits}


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
        if left := trials_left_out.counted(found.outcomes):
            console.print(left, style="dim", highlight=False)
        if reached := not_reached.counted(chosen, found.outcomes):
            console.print(reached, style="dim", highlight=False)
        causes.show(console, chosen, found.outcomes, str(path))
    for text in found.tested.notes:
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    _errors(found, console)
    if found.outcomes and found.usage.workers > 1:
        console.print(f"\n{found.usage}", style="dim", highlight=False, soft_wrap=True)
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
        console.print(f"{outcome.seconds:.2f}s {outcome.id}", markup=False, highlight=False, soft_wrap=True)


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
