"""Runs the items of a suite: gives them to slots, takes in rows, decides what is tried again, and keeps the books."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from kernelmux.registry.errors import ArgumentError
from kernelmux.runner import results
from kernelmux.runner.interrupts import interrupts
from kernelmux.runner.item import Slot, Suite, WorkItem
from kernelmux.runner.local_pool import CLOSED, READY, ROW, Event, LocalPool
from kernelmux.runner.machine import Workers
from kernelmux.runner.plan import NOTHING, Plan
from kernelmux.runner.worker import function, version

TRIES = 3  # of an item whose worker went for no fault of the item's
MISSED = 10  # workers that went before they had begun it
POLL = 0.5  # seconds, for limits of time
BUSY, STARTING = "busy", "new processes"  # what a slot does, or waits for, beside what `plan` says
ALL = "all"  # of --on
EACH = "run everything once on each of these kinds of card, as the report names them (default: all there are)"


class EndRun(Exception):
    """Raised by a suite that has seen enough: nothing else begins, and what runs is ended."""


class Engine(Protocol):
    """What has slots, and does for them what `LocalPool` says: that on this machine, `cluster.RayCluster` on many."""

    def send(self, slot: Slot, item: WorkItem, seconds: float) -> None: ...
    def close(self, slot: Slot) -> None: ...
    def events(self, timeout: float) -> list[Event]: ...
    def cards(self) -> list[str]: ...
    def starting(self) -> bool: ...


@dataclass
class Usage:
    """Where the workers' seconds went, from the first item to the last. workers: how many there were at most.

    busy: with an item; waits: without one, by what they waited for (`plan`). until_first: from the start of the run.
    """

    workers: int = 0
    seconds: float = 0.0
    busy: float = 0.0
    waits: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    until_first: float = 0.0

    def __str__(self) -> str:
        whole = self.workers * self.seconds or math.inf
        told = [f"{self.workers} workers were busy {100 * self.busy / whole:.0f} % of {self.seconds:.0f} s"]
        for why, seconds in sorted(self.waits.items(), key=lambda wait: -wait[1]):
            if seconds > 0.01 * whole:
                what = "without work" if why == NOTHING else f"waiting for {why}"
                told.append(f"{100 * seconds / whole:.0f} % {what}")
        return ", ".join(told)


@dataclass
class RunReport:
    """What came of a run. rows: by item, those of the run before it too, if it went on with that: `resumed` of them.

    errors: why items could not be run at all.
    """

    rows: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    interrupted: bool = False
    resumed: int = 0


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


@dataclass(eq=False)
class _Try:
    """An item in a slot, from `since` on. row, seconds: once it has ended.

    beside: slots of the same GPU with items that ran at the same time and still do; hurt: what became of such a one, or of
    its own process, for which it is tried again. began: whether its process had begun it.
    """

    item: WorkItem
    slot: Slot
    since: float = 0.0
    beside: set[str] = field(default_factory=set)
    hurt: str = ""
    row: Any = None
    seconds: float = 0.0
    began: bool = True


class RunState:
    """One run and its books. `begin` gives a slot an item, `take` and `gone` take it back."""

    def __init__(
        self,
        suite: Suite,
        items: Iterable[WorkItem],
        file: results.ResultsFile,
        done: Iterable[results.Row] = (),
        limit: TimeLimit | None = None,
    ) -> None:
        """file: gets each row. done: rows of the run that this one goes on with."""
        self.suite, self.file, self.limit, self.report = suite, file, limit or TimeLimit(), RunReport()
        self.plan, self._done = Plan(()), {line["item"]: line["row"] for line in done if "item" in line}
        self._add(items)
        self.slots: dict[str, Slot] = {}
        self.working: dict[str, _Try] = {}
        self.held: list[_Try] = []  # what has failed, and may have been hurt by what still runs beside it
        self.states: dict[str, tuple[str, float]] = {}  # what each slot does or waits for, and since when
        self.tries: Counter[tuple[str, bool]] = Counter()  # of an item, by whether its process had begun it
        self.started, self.first, self.last = time.monotonic(), math.inf, 0.0

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

    def _turn(self, slot: Slot, state: str, now: float) -> None:
        """From now on a slot is busy, or waits for this; its seconds until now are counted."""
        before, since = self.states.get(slot.id, (STARTING, self.started))
        self.states[slot.id] = state, now
        self.report.usage.waits[before] += max(0.0, now - max(since, self.first))

    def joins(self, slot: Slot, facts: Mapping[str, Any]) -> None:
        """A process is ready in a slot, which may work if its sources are those of the run."""
        if facts["version"] != version():
            why = "its sources are not those of this process: were files changed during the run?"
            self.gone(Event(slot, CLOSED, why))
            return
        if slot.id not in self.slots:
            self.file.append({"worker": slot.id, "node": slot.node, "card": slot.card, **facts})
            self.slots[slot.id] = slot
        self._turn(slot, NOTHING, time.monotonic())
        self.report.usage.workers = max(self.report.usage.workers, len(self.slots))

    def begin(self, slot: Slot) -> tuple[WorkItem, float] | None:
        """The next item of a slot, with the seconds that it may take."""
        while (item := self.plan.next(slot)) is not None:
            if (share := self.limit.share(item, self.plan.left, len(self.slots))) is None:
                self._record(_Try(self.plan.end(slot), slot, row=self.suite.late(item)), "late")
                continue
            now = time.monotonic()
            self.first = min(self.first, now)
            self._turn(slot, BUSY, now)
            beside = {name for name, other in self.working.items() if slot.gpu and other.slot.gpu == slot.gpu}
            for name in beside:
                self.working[name].beside.add(slot.id)
            self.working[slot.id] = _Try(item, slot, now, beside)
            self.suite.begins(item)
            return replace(item, limit=self.limit.most(item)), share
        self._turn(slot, self.plan.waits_for(slot), time.monotonic())
        return None

    def take(self, slot: Slot, row: Any, lost: bool = False) -> None:
        """A slot has ended its item. lost: and its GPU answers it no more."""
        done, failed = self.working[slot.id], self.suite.failed(row)
        harm = f"{done.item.id} lost the context of the GPU" if lost else ""
        self._ended(done, row, harm, done.hurt if failed else "", doubted=failed and not lost)

    def gone(self, event: Event) -> None:
        """The process of a slot has ended, or the slot itself."""
        slot, reason = event.slot, event.value
        if done := self.working.get(slot.id):
            done.began = event.began
            row, harm = self.suite.lost(done.item, reason), f"the process of {done.item.id} ended"
            self._ended(done, row, harm, reason if event.outside else "")
        if slot.id in self.slots:
            self._turn(slot, STARTING, time.monotonic())
        if event.kind == CLOSED:
            self.plan.drop(slot)
            self.slots.pop(slot.id, None)
            if not event.outside:
                self.report.errors.append(f"worker {slot.id}: {reason}")

    def _ended(self, done: _Try, row: Any, harm: str, again: str, doubted: bool = False) -> None:
        """An item has ended.

        harm: what became of its process, by which others on its GPU may fail. again: why it is no fault of the item's.
        doubted: what still runs beside it may turn out to have been the cause.
        """
        slot, now = done.slot, time.monotonic()
        done.row, done.seconds, self.last = row, now - done.since, now
        done.hurt, done.beside = again, done.beside if doubted else set()
        del self.working[slot.id]
        self.plan.end(slot)
        self._turn(slot, STARTING if harm else NOTHING, now)
        for other in (*self.working.values(), *self.held):
            if slot.id in other.beside:
                other.beside.discard(slot.id)
                other.hurt = f"{harm} beside it" if harm else other.hurt
        self.held.append(done)
        for held in [held for held in self.held if held.hurt or not held.beside]:
            self.held.remove(held)
            self._settle(held)

    def _settle(self, done: _Try) -> None:
        """Record an item, or try it once more if it was hurt, which a line says. `MISSED`: of one that had not begun."""
        item, slot = done.item, done.slot
        self.tries[item.id, done.began] += 1
        if done.hurt and self.tries[item.id, done.began] < (TRIES if done.began else MISSED):
            where = {"slot": slot.id, "node": slot.node}
            self.file.append({"again": item.id, "reason": done.hurt, **where, "failed": done.row})
            self.plan.again(item)
        else:
            self._record(done)

    def _record(self, done: _Try, kind: str = "item") -> None:
        """kind: "late" for an item that a run which goes on with this one has to run."""
        told = {"slot": done.slot.id, "node": done.slot.node, "card": done.slot.card, "seconds": round(done.seconds, 4)}
        self.file.append({kind: done.item.id, "row": done.row, **told})
        self._take(done.item, done.row)

    def run(self, engine: Engine | None) -> RunReport:
        """Run the plan to its end on the slots of an engine.

        engine: None for this process, which does not survive what an item does to it: for few items, and for debuggers.
        """
        report, usage = self.report, self.report.usage
        try:
            if engine:
                with interrupts.held():  # no row is to be taken in by half
                    self._drive(engine)
            else:
                self._serve_here()
            if rest := self.plan.rest():
                shown = ", ".join(item.id for item in rest[:3]) + (", ..." if len(rest) > 3 else "")
                report.errors.append(f"no worker is left that can run {len(rest)} of the items: {shown}")
        except EndRun:
            pass
        except KeyboardInterrupt:
            report.interrupted = True
        for held in [held for held in self.held if not held.hurt]:  # the run ends before what ran beside it
            with suppress(EndRun):
                self._record(held)
        for slot in self.slots.values():
            self._turn(slot, NOTHING, self.last)
        usage.busy = usage.waits.pop(BUSY, 0.0)
        usage.seconds = max(0.0, self.last - self.first)
        usage.until_first = min(self.first, time.monotonic()) - self.started
        return report

    def _drive(self, engine: Engine) -> None:
        """Give items out and take rows in, until nothing is left that can be run; `held` raises what Ctrl-C ended."""
        before = interrupts.first
        while self.plan.left and interrupts.first == before:
            for event in engine.events(POLL):
                if event.kind == READY:
                    self.joins(event.slot, event.value)
                elif event.kind == ROW:
                    self.take(event.slot, *event.value)
                else:
                    self.gone(event)
            for slot in [slot for name, slot in self.slots.items() if self.states[name][0] not in (BUSY, STARTING)]:
                if begun := self.begin(slot):
                    engine.send(slot, *begun)
                elif slot.ends and not any(map(slot.admits, self.plan.rest())):
                    engine.close(slot)
                    self.gone(Event(slot, CLOSED, outside=True))
            if not (self.working or engine.starting()):
                return

    def _serve_here(self) -> None:
        """Run the items one after another in this process."""
        slot = Slot("here")
        self.slots[slot.id], self.report.usage.workers = slot, 1

        def items() -> Iterator[tuple[Any, float]]:
            while begun := self.begin(slot):
                yield begun[0].work, begun[1]

        function(self.suite.serve)(self.suite.setup, items(), lambda row, lost=False: self.take(slot, row, lost))


def execute(
    suite: Suite,
    items: Iterable[WorkItem] | Callable[[Sequence[str]], Iterable[WorkItem]],
    workers: Workers | None,
    home: Path,
    asked: Any,
    resume: bool = False,
    limit: TimeLimit | None = None,
    cluster: str = "",
    on: Sequence[str] = (),
    keep: bool = False,
) -> RunReport:
    """Run the items; each row goes into `rows.jsonl` of the folder `home` as it comes.

    items: or a function that makes them, given the kinds of cards that there are. workers: None for this process itself.
    asked: what the rows are of, as JSON; with `resume` a run goes on with rows of the same plan, sources and `asked`. keep:
    the rows of all runs stay in the file. cluster: "auto" or the address of a Ray cluster, "" for this machine. on: the
    kinds of cards, on each of which every item runs once (its id is then "id@card"), or parts of their names; by default,
    and with "all", each kind that there is. ArgumentError for a folder that cannot be written to, that another run has, or
    that holds no such run to go on with, and for cards that are not there.
    """
    home = results.folder(home)
    with _engine(suite, workers, home, cluster) if workers else nullcontext() as engine:
        cards = engine.cards() if engine else []
        if callable(items):
            every = list(items([card for card in cards if card]))
        elif engine:
            every = list(items)
            if kinds := chosen(cards, on):
                every = [replace(item, id=f"{item.id}@{card}", card=card) for card in kinds for item in every]
        else:  # one process is for all
            every = [replace(item, gpus=0, cpu=False, alone=False, card="") for item in items]
        head = {"program": suite.name, "version": version(), "asked": asked, "items": len(every)}
        with results.opened(home, head, resume, keep) as (file, done):
            report = RunState(suite, every, file, done, limit).run(engine)
            report.errors += getattr(engine, "problems", [])  # of a cluster: nodes that could not be used
            return report


def _engine(suite: Suite, workers: Workers, home: Path, cluster: str) -> AbstractContextManager[Engine]:
    """What has the worker processes, once it is entered."""
    if cluster:
        from kernelmux.runner.cluster.engine import RayCluster  # the extra `cluster`

        return RayCluster(cluster, suite.serve, suite.setup, workers)
    if not (slots := workers.slots()):
        raise ArgumentError("no GPU is seen by NVML: the package nvidia-ml-py is needed, and a driver")
    return LocalPool(slots, suite.serve, suite.setup, results.folder(home / "logs"))


def chosen(cards: Sequence[str], on: Sequence[str]) -> list[str]:
    """The kinds of cards that --on names, [] where all workers are alike; ArgumentError for one that is not there."""
    known = [card for card in cards if card]
    for name in on:
        if not known:
            raise ArgumentError(f"--on {name}: no worker has a GPU, or declares a kind of card")
        if name != ALL and not any(name.lower() in card for card in known):
            raise ArgumentError(f"--on {name}: expected a part of {', '.join(known)}, or {ALL}")
    every = not on or ALL in on
    found = [card for card in cards if every or any(name.lower() in card for name in on)]
    return found if len(cards) > 1 else []


def add_arguments(group: Any, resume: bool = True, on: str = EACH) -> None:
    """Add --resume (unless told not to), --cluster and --on to a parser, or to a group of one. on: the help of the last."""
    goes = "go on with the run whose rows are in the --out folder: what has ended is not run again"
    many = "run on a Ray cluster: auto, or the address of its head (needs the extra cluster)"
    if resume:
        group.add_argument("--resume", action="store_true", help=goes)
    group.add_argument("--cluster", nargs="?", const="auto", default="", metavar="ADDRESS", help=many)
    group.add_argument("--on", nargs="+", default=[], metavar="CARD", help=on)
