"""The worker processes of several trees: slots of one pool, each of which imports its own tree, asked one by one."""

from __future__ import annotations

import itertools
import os
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelmux.perf.against.trees import Tree, is_import_root
from kernelmux.registry.errors import BackendUnavailable
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.local_pool import CLOSED, READY, ROW, Event, LocalPool

SERVE = f"{Path(__file__).resolve().with_name('worker.py')}:serve"
POLL = 0.5  # seconds, for limits of time


class Failure(Exception):
    """A row cannot be timed, or its output is wrong, in the process of one tree; the text says why."""

    def __init__(self, worker: TreeWorker, text: str) -> None:
        super().__init__(text)
        self.worker = worker


class TreeWorker:
    """The process of one tree, which the pool starts anew when it is lost."""

    def __init__(self, workers: TreeWorkers, tree: Tree, slot: Slot) -> None:
        self.workers, self.tree, self.slot = workers, tree, slot
        self.ready, self.asked = False, 0
        self.heard = deque[Event]()

    def greet(self) -> None:
        """Wait until the process has started; Failure, BackendUnavailable if it imports another tree."""
        self.revive()
        registry, expected = self.ask("where"), (self.tree.root / "kernelmux" / "registry").resolve()
        if Path(registry) != expected:
            raise BackendUnavailable(f"--against: {self.tree.name}: the registry came from {registry}, not {expected}")

    def revive(self) -> None:
        """Wait until a process is there to be asked: after one that was lost, the next; Failure if none can be started."""
        while self.heard or not self.ready:
            event = self.workers.wait_for(self)
            if event.kind == CLOSED:
                raise Failure(self, str(event.value))
            given_up = (
                event.kind == ROW and not event.value[1]
            )  # a row of a question that was, by a process that goes on
            self.ready = event.kind == READY or (self.ready and given_up)

    def send(self, request: str, *arguments: Any) -> None:
        """Ask; `receive` takes the answer to the last question."""
        self.asked = self.workers.send(self, request, arguments)

    def receive(self) -> Any:
        """The answer; Failure."""
        while True:
            event = self.workers.wait_for(self)
            if event.kind == ROW:
                (number, status, told), lost = event.value
                self.ready = not lost
                if number != self.asked:  # of a question given up
                    continue
                if status != "ok":
                    raise Failure(self, told)
                return told
            self.ready = event.kind == READY
            if not self.ready:
                if event.kind == CLOSED:
                    self.heard.append(event)  # for `revive`
                raise Failure(self, f"the process did not survive it: {event.value}")

    def ask(self, request: str, *arguments: Any) -> Any:
        """Ask and wait for the answer; Failure."""
        self.send(request, *arguments)
        return self.receive()

    @property
    def log(self) -> Path:
        """What the process has printed."""
        return self.workers.logs / f"worker-{self.slot.id}.log"


class TreeWorkers:
    """A process for each of some trees, side by side; a context that ends them. limit: seconds of an answer."""

    def __init__(self, trees: Sequence[Tree], device: str, logs: Path, limit: float) -> None:
        self.logs, self.limit, self.numbers = logs, limit, itertools.count(1)
        slots = [Slot(f"tree{i}", environment=_environment(), path=_path(tree)) for i, tree in enumerate(trees)]
        self.workers = [TreeWorker(self, tree, slot) for tree, slot in zip(trees, slots, strict=True)]
        self.pool = LocalPool(slots, SERVE, {"device": device}, logs)

    def __enter__(self) -> TreeWorkers:
        self.pool.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self.pool.__exit__()

    def send(self, worker: TreeWorker, request: str, arguments: Sequence[Any]) -> int:
        """Ask a worker; the number of the question."""
        number = next(self.numbers)
        work = [number, request, *arguments]
        self.pool.send(worker.slot, WorkItem(request, work, limit=self.limit), self.limit)
        return number

    def wait_for(self, worker: TreeWorker) -> Event:
        """The next thing that is heard of a worker; the pool ends one that takes too long."""
        while not worker.heard:
            for event in self.pool.events(POLL):
                next(w for w in self.workers if w.slot.id == event.slot.id).heard.append(event)
        return worker.heard.popleft()


def _path(tree: Tree) -> tuple[str, ...]:
    """This process's import path, with the tree in place of what it has of ours."""
    return str(tree.root), *(path for path in sys.path if path and not is_import_root(Path(path)))


def _environment() -> dict[str, str]:
    """Threads of torch that wait leave the CPU to the other processes, unless the user has said something else."""
    return {} if "OMP_WAIT_POLICY" in os.environ else {"OMP_WAIT_POLICY": "PASSIVE"}
