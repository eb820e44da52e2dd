"""Times rows of two trees in turns: the base with itself, then the base and this tree."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmux.perf.against.tree_workers import Failure, TreeWorker, TreeWorkers
from kernelmux.perf.against.trees import Tree
from kernelmux.perf.against.verdict import FAILED, NO_BASE, Judged, Round, judge
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.codec import decode, encode
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.registry.errors import BackendUnavailable

ROUNDS = 20
SAMPLES, SECONDS = 5, 0.02  # calls of a turn: at most, and how long they take together; at least one


@dataclass(frozen=True)
class Setup:
    """What to compare and how. limit: seconds of one request; rounds: of A/A, and again of the comparison."""

    base: Tree
    here: Tree
    device: str
    limit: float = 120.0
    rounds: int = ROUNDS


class Session:
    """Two processes of the base and one of this tree; a context that ends them. logs: a folder for what they print."""

    def __init__(self, setup: Setup, logs: Path) -> None:
        self.setup = setup
        trees = (setup.base, setup.here, setup.base)
        self.started = TreeWorkers(trees, setup.device, logs, setup.limit)
        self.workers = self.started.workers

    def __enter__(self) -> Session:
        self.started.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self.started.__exit__()

    def greet(self) -> None:
        """Wait until the processes have started, each with its tree; BackendUnavailable."""
        with _failures_as_unavailable():
            for worker in self.workers:
                worker.greet()

    def rows(self, options: PerfOptions) -> tuple[Any, Any]:
        """The rows of the base and of this tree."""
        base, here, _ = self.workers
        with _failures_as_unavailable():
            return base.ask("rows", options.as_dict()), here.ask("rows", options.as_dict())

    def machine(self) -> MeasuringMachine:
        """What the rows run on."""
        with _failures_as_unavailable():
            return decode(MeasuringMachine, self.workers[0].ask("machine"), "machine")

    def judge(self, row: Row) -> Judged:
        """Time a row in both trees and judge it; a row that fails in one of them is judged as that."""
        base, here, again = self.workers
        try:
            count = self._prepare(row)
            apart = _rounds(self.setup.rounds, count, lambda _: (base, again))
            rounds = _rounds(self.setup.rounds, count, lambda i: ((base, again)[i % 2], here))
            for worker in self.workers:
                worker.ask("check")
        except Failure as failure:
            verdict = FAILED if failure.worker is here else NO_BASE
            return Judged(**row.identity, verdict=verdict, note=str(failure))
        return judge(row, apart, rounds)

    def _prepare(self, row: Row) -> int:
        """Compile and call the row in all processes; how many calls make a turn."""
        for worker in self.workers:
            worker.revive()
        for worker in self.workers:  # side by side, for compiling takes seconds
            worker.send("prepare", encode(row))
        failures = {worker: failure for worker in self.workers if (failure := _failure(worker))}
        if failures:
            raise failures.get(self.workers[1]) or next(iter(failures.values()))
        # One after the other, for what they find out of the host's time must not contain the others' work.
        seconds = [worker.ask("prepare", encode(row)) for worker in self.workers]
        return max(1, min(SAMPLES, int(SECONDS / max(seconds))))


def _failure(worker: TreeWorker) -> Failure | None:
    """Take in an answer: what it says of a failure."""
    try:
        worker.receive()
    except Failure as failure:
        return failure
    return None


@contextmanager
def _failures_as_unavailable() -> Iterator[None]:
    """What fails inside is no row's fault: BackendUnavailable, with the end of the log."""
    try:
        yield
    except Failure as failure:
        log = failure.worker.log
        told = log.read_text(errors="replace").strip().splitlines()[-15:] if log.exists() else []
        text = f"--against: {failure.worker.tree.name} does not work with this harness: {failure}; the end of {log}:"
        raise BackendUnavailable("\n".join([text, *told])) from failure


def _rounds(rounds: int, count: int, pair: Callable[[int], tuple[TreeWorker, TreeWorker]]) -> list[Round]:
    """A B B A or B A A B, drawn anew for every round."""
    return [_round(*pair(i), count) for i in range(rounds)]


def _round(base: TreeWorker, here: TreeWorker, count: int) -> Round:
    first, second = random.sample((base, here), 2)
    times: dict[TreeWorker, list[float]] = {base: [], here: []}
    for worker in (first, second, second, first):
        times[worker] += worker.ask("time", count)
    return Round(statistics.median(times[base]), statistics.median(times[here]))
