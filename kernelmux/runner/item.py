"""A piece of work, the worker process that may do it, and what a suite brings beside its items."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class WorkItem:
    """One piece of work.

    id: its name, once in a plan. work: what the suite's function gets, as JSON. seconds: how long it is expected to take.
    rank: items of a lower rank begin before all others; within a rank the longest begin first. group: items of one
    group run in one worker where there are groups enough, in the order of the plan; together: in any case. gpus: 0 for an
    item that any worker can run; 1 or 2 for so many GPUs. cpu: only a worker without a GPU can run it. alone: nothing else
    runs on its GPU meanwhile. memory: bytes of its GPU that it may take. card: the only kind of card that it is for
    ("nvidia_h200"), "" for any. limit: seconds after which its worker is ended.
    """

    id: str
    work: Any = None
    seconds: float = 1.0
    rank: int = 0
    group: str = ""
    together: bool = False
    gpus: int = 0
    cpu: bool = False
    alone: bool = False
    memory: int = 0
    card: str = ""
    limit: float = math.inf


@dataclass(frozen=True)
class Slot:
    """A place for a worker process, which runs one item at a time.

    node: the machine. gpus: the GPUs it sees as CUDA_VISIBLE_DEVICES names them, its own first; () for one without.
    card: the kind of that GPU ("nvidia_h200"), or what a node declares. alone: it takes only items that need a GPU
    alone; others take none of these. memory: bytes of its GPU. path: what it imports from, () for what this process
    does. ends: its process ends once nothing is left for it, and leaves the GPU to others.
    """

    id: str
    node: str = ""
    gpus: tuple[str, ...] = ()
    card: str = ""
    alone: bool = False
    memory: int = 0
    environment: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)
    path: tuple[str, ...] = ()
    ends: bool = False

    @property
    def gpu(self) -> str:
        """The GPU of its own, by node and number; "" for none."""
        return f"{self.node}:{self.gpus[0]}" if self.gpus else ""

    def admits(self, item: WorkItem) -> bool:
        """Whether it may run an item at all."""
        fits = item.gpus <= len(self.gpus) and item.alone == self.alone and not (item.cpu and self.gpus)
        return fits and item.card in ("", self.card)


# What a worker process calls, "package.module:function": it gets the setup, the work of one item after another, with the
# seconds it may take, and tells a row for each; `lost` in it says that the process is good for nothing more.
Serve = Callable[[Any, Iterator[tuple[Any, float]], Callable[[Any], None]], None]


class Suite(Protocol):
    """The driver's side of a suite. name: of the program. serve: a `Serve` by its place. setup: what it gets, as JSON."""

    name: str
    serve: str
    setup: Any

    def begins(self, item: WorkItem) -> None:
        """An item begins."""

    def takes(self, item: WorkItem, row: Any) -> Iterable[WorkItem] | None:
        """The row of an item that has ended; gives the items that follow from it. To end the run, raise `run.EndRun`."""

    def lost(self, item: WorkItem, reason: str) -> Any:
        """The row of an item whose worker did not survive it."""

    def late(self, item: WorkItem) -> Any:
        """The row of an item for which the time of the run was too short."""

    def failed(self, row: Any) -> bool:
        """Whether a row is of a failure, which what else happened on the same GPU could have caused."""
