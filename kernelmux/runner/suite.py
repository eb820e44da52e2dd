"""What a suite brings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from kernelmux.runner.item import WorkItem

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
