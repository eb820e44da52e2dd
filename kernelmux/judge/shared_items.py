"""The items of a verdict, which one judge takes from the left, and a second one from the right."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from kernelmux.conformance.session.execute import Outcome
from kernelmux.judge.judged_function import AskedItem


class SharedItems:
    """Items that wait for a judge, and what the second judge has done of them.

    launched, operators: by the functions that it has called.
    """

    def __init__(self) -> None:
        self.waiting = deque[AskedItem]()
        self.launched: dict[str, int] = {}
        self.operators = set[str]()
        self._ended = deque[tuple[int, Outcome]]()
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, items: Sequence[AskedItem]) -> None:
        """From now on these wait."""
        self.waiting.extend(items)
        self._begun.set()

    def first(self) -> AskedItem | None:
        """The next one for the judge that was asked; None if none is left."""
        with suppress(IndexError):
            return self.waiting.popleft()
        return None

    def last(self) -> AskedItem | None:
        """The next one for the second judge, once they wait; None if none is left."""
        self._begun.wait()
        with suppress(IndexError):
            return self.waiting.pop()
        return None

    def new_outcomes(self) -> Iterator[tuple[int, Outcome]]:
        """What the second judge has found since this was asked, with the place of each item."""
        while self._ended:
            yield self._ended.popleft()

    def add(self, place: int, outcomes: Sequence[Outcome]) -> None:
        """What has come of an item in the second judge."""
        self._ended += [(place, one) for one in outcomes]

    def run(self, work: Callable[[], None]) -> None:
        """Do the work of the second judge in a thread."""
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nothing waits any more."""
        self.waiting.clear()
        self._begun.set()

    def join(self) -> None:
        """Wait until the second judge has ended what it has begun; what it could not do waits."""
        if self._thread:
            self._thread.join()
