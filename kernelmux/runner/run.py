"""Runs a plan: gives items to slots, takes in rows, decides what is tried again, and keeps the books."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kernelmux.runner.interrupts import interrupts
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.local_pool import CLOSED, GONE, READY, ROW, Event
from kernelmux.runner.plan import NOTHING, Plan
from kernelmux.runner.results import ResultsFile, Row
from kernelmux.runner.suite import Suite
from kernelmux.runner.worker import function, version

TRIES = 3  # of an item whose worker went for no fault of the item's
MISSED = 10  # workers that went before they had begun it
POLL = 0.5  # seconds, for limits of time
STARTING = "new processes"  # what a slot waits for until it is ready


class EndRun(Exception):
    """Raised by a suite that has seen enough: nothing else begins, and what runs is ended."""


class Engine(Protocol):
    """What has slots: `local_pool.LocalPool` on this machine, `cluster.RayCluster` on many."""

    def send(self, slot: Slot, item: WorkItem, seconds: float) -> None:
        """Give a slot an item, and the seconds that it may take."""

    def renew(self, slot: Slot) -> None:
        """Start another process in a slot."""

    def close(self, slot: Slot) -> None:
        """End the process of a slot for good."""

    def events(self, timeout: float) -> list[Event]:
        """What has happened."""

    def starting(self) -> bool:
        """Whether a slot that is not ready may still become so."""


@dataclass
class Usage:
    """Where the workers' seconds went, from the first item to the last. workers: how many there were at most.

    waits: by what a worker without an item waited for (`plan`).
    """

    workers: int = 0
    seconds: float = 0.0
    busy: float = 0.0
    waits: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    until_first: float = 0.0  # from the start of the run
    imports: float = 0.0  # of that, the longest import in a worker

    @property
    def share(self) -> float:
        """Busy seconds over workers x seconds."""
        return self.busy / (self.workers * self.seconds) if self.workers and self.seconds else 0.0

    def __str__(self) -> str:
        whole = self.workers * self.seconds
        busy = f"{self.workers} workers were busy {100 * self.share:.0f} % of {self.seconds:.0f} s"
        waited = sorted(self.waits.items(), key=lambda told: -told[1])
        said = [(s, "without work" if why == NOTHING else f"waiting for {why}") for why, s in waited]
        others = [f"{100 * s / whole:.0f} % {what}" for s, what in said if whole and s > 0.01 * whole]
        return ", ".join([busy, *others])


@dataclass
class RunReport:
    """What came of a run. rows: by item, those of the run before it too, if it went on with that. errors: why items could
    not be run at all. machines: facts of each slot's machine.
    """

    rows: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    interrupted: bool = False
    enough: bool = False
    resumed: int = 0
    machines: dict[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class TimeLimit:
    """until: by time.monotonic, when the run is over. Items of a rank up to `required` are run in any case."""

    until: float = math.inf
    required: int = -1

    def share(self, item: WorkItem, remaining: int, workers: int) -> float | None:
        """The seconds that an item may take where so many are left, itself included; None if it is not to begin."""
        left = self.until - time.monotonic()
        if item.rank > self.required and item.seconds > left:
            return None
        return max(left, 0.0) * workers / max(remaining, 1)

    def most(self, item: WorkItem) -> float:
        """The seconds after which the worker of an item that begins now is ended."""
        return item.limit


@dataclass
class _Working:
    """An item in a slot."""

    item: WorkItem
    since: float
    beside: str = ""  # what happened on the same GPU meanwhile


@dataclass
class _Held:
    """An item that has failed. beside: slots with what still runs on its GPU, and may turn out to have hurt it."""

    item: WorkItem
    row: Any
    slot: Slot
    seconds: float
    beside: set[str]


class RunState:
    """The books of one run. `begin` gives a slot an item, `take` and `gone` take it back."""

    def __init__(
        self,
        suite: Suite,
        items: Iterable[WorkItem],
        file: ResultsFile | None = None,
        done: Iterable[Row] = (),
        limit: TimeLimit | None = None,
    ) -> None:
        """file: gets each row. done: rows of the run that this one goes on with."""
        self.suite, self.file, self.limit, self.report = suite, file, limit or TimeLimit(), RunReport()
        self.plan, self._done = Plan(()), {line["item"]: line["row"] for line in done if "item" in line}
        self._add(items)
        self.slots: dict[str, Slot] = {}
        self.working: dict[str, _Working] = {}
        self.idle: dict[str, tuple[float, str]] = {}
        self.held: list[_Held] = []
        self.tries: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.version = version()  # of the sources at the start: a worker that imports others is none of this run
        self.started, self.first, self.last = time.monotonic(), 0.0, 0.0

    def _add(self, items: Iterable[WorkItem]) -> None:
        """Items to run; those that the run before has ended count as they are, and so do those that follow from them."""
        every = {item.id: item for item in items}
        ended = [every.pop(name) for name in self._done if name in every] if every else []
        self.plan.add(every.values())
        for item in ended:
            self.report.resumed += 1
            with suppress(EndRun):  # it was for the run before
                self._take(item, self._done.pop(item.id))

    def _take(self, item: WorkItem, row: Any) -> None:
        self.report.rows[item.id] = row
        self._add(self.suite.takes(item, row) or ())

    def begin(self, slot: Slot) -> tuple[WorkItem, float] | None:
        """The next item of a slot, with the seconds that it may take."""
        while (item := self.plan.next(slot)) is not None:
            share = self.limit.share(item, self.plan.left, max(1, len(self.slots)))
            now = time.monotonic()
            if share is None:
                self._record(self.plan.end(slot), self.suite.late(item), slot, 0.0, "late")
                continue
            self.first = self.first or now
            self._waits(slot, now, NOTHING)
            del self.idle[slot.id]
            self.working[slot.id] = _Working(item, now)
            self.suite.begins(item)
            return replace(item, limit=self.limit.most(item)), share
        self._waits(slot, time.monotonic(), self.plan.waits_for(slot))
        return None

    def take(self, slot: Slot, row: Any, lost: bool = False) -> None:
        """A slot has ended its item. lost: and its GPU answers it no more."""
        done, now = self.working.pop(slot.id), time.monotonic()
        self.report.usage.busy += now - done.since
        self.last = now
        if lost:
            self.idle[slot.id] = now, STARTING
            self._hurt(slot, f"{done.item.id} lost the context of the GPU")
        failed = slot.gpu and self.suite.failed(row)
        if failed and done.beside and self._again(done.item, slot, done.beside, row):
            self.plan.again(slot)
        elif failed and not lost and (beside := {other for other in self.working if self.slots[other].gpu == slot.gpu}):
            self.held.append(_Held(self.plan.end(slot), row, slot, now - done.since, beside))
        else:
            self._record(self.plan.end(slot), row, slot, now - done.since)
        self._settle(slot)

    def gone(self, slot: Slot, reason: str, outside: bool, closed: bool, began: bool = True) -> None:
        """The process of a slot has ended. closed: no other one takes its place. began: it had begun its item."""
        done, now = self.working.pop(slot.id, None), time.monotonic()
        self._waits(slot, now, STARTING)
        if done:
            self.report.usage.busy += now - done.since
            self.last = now
            self._hurt(slot, f"the process of {done.item.id} ended")
            if outside and self._again(done.item, slot, reason, None, began):
                self.plan.again(slot)
            else:
                self._record(self.plan.end(slot), self.suite.lost(done.item, reason), slot, now - done.since)
            self._settle(slot)
        if closed:
            self._waits(slot, now, STARTING)
            self.plan.drop(slot)
            self.slots.pop(slot.id, None)
            self.idle.pop(slot.id, None)
            if not outside:
                self.report.errors.append(f"worker {slot.id}: {reason}")

    def _waits(self, slot: Slot, now: float, why: str) -> None:
        """From now on a slot waits, for this; what it waited for until now is counted."""
        since, before = self.idle.get(slot.id, (now, why))
        if self.first:
            self.report.usage.waits[before] += now - max(since, self.first)
        self.idle[slot.id] = now, why

    def leaves(self, slot: Slot) -> bool:
        """Whether a slot without an item is to end, as nothing is left for it; it is forgotten then."""
        if not slot.ends or not self.plan.over(slot):
            return False
        self._waits(slot, time.monotonic(), NOTHING)
        del self.slots[slot.id], self.idle[slot.id]
        return True

    def _hurt(self, slot: Slot, what: str) -> None:
        """What runs on the same GPU may fail by what has happened there, and what ran beside it may have."""
        for other, working in self.working.items():
            if slot.gpu and self.slots[other].gpu == slot.gpu:
                working.beside = f"{what} beside it"
        for held in [held for held in self.held if slot.id in held.beside]:
            if self._again(held.item, held.slot, f"{what} beside it", held.row):
                self.held.remove(held)
                self.plan.add([held.item])

    def _settle(self, slot: Slot) -> None:
        """What runs in a slot can hurt nothing more: what has failed beside it, and beside nothing else, has failed."""
        for held in self.held:
            held.beside.discard(slot.id)
        for held in [held for held in self.held if not held.beside]:
            self.held.remove(held)
            self._record(held.item, held.row, held.slot, held.seconds)

    def _again(self, item: WorkItem, slot: Slot, reason: str, row: Any, began: bool = True) -> bool:
        """Whether an item is tried once more; a line says why. One that its process had not begun has not been tried."""
        (self.tries if began else self.missed)[item.id] += 1
        if self.tries[item.id] >= TRIES or self.missed[item.id] >= MISSED:
            return False
        self._write({"again": item.id, "reason": reason, "slot": slot.id, "node": slot.node, "failed": row})
        return True

    def _record(self, item: WorkItem, row: Any, slot: Slot, seconds: float, kind: str = "item") -> None:
        """kind: "late" for an item that a run which goes on with this one has to run."""
        told = {"slot": slot.id, "node": slot.node, "card": slot.card, "seconds": round(seconds, 4)}
        tries = {"tries": min(self.tries[item.id] + 1, TRIES)} if self.tries[item.id] else {}
        self._write({kind: item.id, "row": row, **told, **tries})
        self._take(item, row)

    def _write(self, row: Row) -> None:
        if self.file:
            with interrupts.held():
                self.file.append(row)

    def joins(self, slot: Slot, facts: Mapping[str, Any]) -> str:
        """A slot is ready; "" or why it may not work."""
        if facts.get("version", "") != self.version:
            return "its sources are not those of this process: were files changed during the run?"
        if slot.id not in self.report.machines:
            self._write({"worker": slot.id, "node": slot.node, "card": slot.card, **facts})
        self.report.machines[slot.id] = facts
        if slot.id not in self.slots:
            self.slots[slot.id] = slot
            self.idle[slot.id] = self.started, STARTING
        self.report.usage.imports = max(self.report.usage.imports, float(facts.get("imports", 0.0)))
        self.report.usage.workers = max(self.report.usage.workers, len(self.slots))
        return ""

    def conclude(self) -> RunReport:
        """The report, once everything has ended."""
        held, self.held = self.held, []
        for one in held:  # the run ends before what ran beside it
            with suppress(EndRun):
                self._record(one.item, one.row, one.slot, one.seconds)
        usage, end = self.report.usage, self.last or self.first
        for since, why in self.idle.values():
            if self.first:
                usage.waits[why] += max(0.0, end - max(since, self.first))
        usage.seconds = end - self.first
        usage.until_first = (self.first or time.monotonic()) - self.started
        return self.report


@contextmanager
def _ending(report: RunReport) -> Iterator[None]:
    """Ctrl-C inside ends a run with the rows that there are, and so does a suite that has seen enough."""
    try:
        yield
    except EndRun:
        report.enough = True
    except KeyboardInterrupt:
        report.interrupted = True


def run(run: RunState, engine: Engine) -> RunReport:
    """Run a plan to its end on the slots of an engine."""
    idle: dict[str, Slot] = {}
    with _ending(run.report), interrupts.held():  # no row is to be taken in by half
        before = interrupts.first
        while run.plan.left and interrupts.first == before:
            for slot in [slot for slot in idle.values() if run.leaves(slot)]:
                engine.close(idle.pop(slot.id))
            for slot in list(idle.values()):
                if begun := run.begin(slot):
                    del idle[slot.id]
                    engine.send(slot, *begun)
            if run.plan.left and not run.working and not engine.starting():
                run.report.errors.append(_stuck(run))
            if not run.plan.left:
                break
            for event in engine.events(POLL):
                _handle(event, run, engine, idle)
    return run.conclude()


def _stuck(run: RunState) -> str:
    """Give up the items that nothing can run any more; says which."""
    rest = run.plan.rest()
    shown = ", ".join(item.id for item in rest[:3]) + (", ..." if len(rest) > 3 else "")
    return f"no worker is left that can run {len(rest)} of the items: {shown}"


def _handle(event: Event, run: RunState, engine: Engine, idle: dict[str, Slot]) -> None:
    slot = event.slot
    if event.kind == READY:
        if why := run.joins(slot, event.value):
            run.report.errors.append(f"worker {slot.id}: {why}")
            run.gone(slot, why, outside=True, closed=True)
            return
        idle[slot.id] = slot
    elif event.kind == ROW:
        row, lost = event.value
        if lost:
            engine.renew(slot)
        else:
            idle[slot.id] = slot
        run.take(slot, row, lost)
    elif event.kind in (GONE, CLOSED):
        idle.pop(slot.id, None)
        run.gone(slot, event.value, event.outside, event.kind == CLOSED, event.began)


def run_here(run: RunState) -> RunReport:
    """Run a plan in this process, which does not survive what an item does to it: for few items, and for debuggers."""
    slot = Slot("here")
    run.slots[slot.id], run.report.usage.workers = slot, 1

    def items() -> Iterator[tuple[Any, float]]:
        while begun := run.begin(slot):
            yield begun[0].work, begun[1]

    with _ending(run.report):
        function(run.suite.serve)(run.suite.setup, items(), lambda row, lost=False: run.take(slot, row, lost))
        if run.plan.left:
            run.report.errors.append(_stuck(run))
    return run.conclude()
