"""The schedulers of xdist that hand items to worker processes, as `spread` wants them handed out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdist.scheduler import LoadScheduling, LoadScopeScheduling

from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.session.scheduling import group

LONG = 3.0  # from so many seconds on, what waits behind an item in its process is better short


class ByVariant(LoadScopeScheduling):  # type: ignore[misc]
    """The scheduler of xdist that keeps a group of items in one process, in the order of the plan."""

    def __init__(self, config: Any, log: Any, items: Mapping[str, Item], first: frozenset[str] = frozenset()) -> None:
        """first: ids of items that come before all others, and so apart from those of their variant."""
        super().__init__(config, log)
        self.items, self.first = items, first
        config.option.loadscopereorder = False  # the plan is in order: the longest first, where that is known

    def _split_scope(self, nodeid: str) -> str:
        item = self.items[nodeid.partition("::")[2]]
        return group(item) + (" first" if item.id in self.first else "")


class LongestFirst(LoadScheduling):  # type: ignore[misc]
    """The scheduler for GPUs: the next item in the order of the plan; behind a long one, the last of all.

    A process of xdist has to know its next item before it begins one, and nothing takes that away from it again. With
    xdist's own scheduler it has several, which wait behind a long one while other processes have come to their end.
    """

    def __init__(self, config: Any, log: Any, expected: Mapping[str, float]) -> None:
        """expected: seconds of the items that may be long, by their id."""
        super().__init__(config, log)
        self.expected = expected

    def check_schedule(self, node: Any, duration: float = 0) -> None:
        if not self.pending:
            super().check_schedule(node, duration)  # which ends the process
        elif not node.shutting_down:
            self._send_tests(node, 2 - len(self.node2pending[node]))

    def _send_tests(self, node: Any, num: int) -> None:
        held = self.node2pending[node]
        for _ in range(min(num, len(self.pending))):
            held.append(self.pending.pop(-1 if held and self._long(held[-1]) else 0))
            node.send_runtest_some(held[-1:])

    def _long(self, index: int) -> bool:
        return self.expected.get(self.collection[index].partition("::")[2], 0.0) >= LONG
