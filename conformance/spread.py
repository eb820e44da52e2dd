"""Which worker process runs which items: those of a variant together, where there are enough variants for all of them.

A kernel that one check has compiled is then there for the next one, already read and translated where it is emulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdist.scheduler import LoadScopeScheduling

from kernelmux.conformance.plan import Item

ENOUGH = 8  # groups for each worker: with fewer, some would be without work at the end for long


class ByVariant(LoadScopeScheduling):  # type: ignore[misc]
    """The scheduler of xdist that keeps a group of items in one process, in the order of the plan."""

    def __init__(self, config: Any, log: Any, items: Mapping[str, Item]) -> None:
        super().__init__(config, log)
        self.items = items
        config.option.loadscopereorder = False  # the plan is in order: the longest first, where that is known

    def _split_scope(self, nodeid: str) -> str:
        return group(self.items[nodeid.partition("::")[2]])


def group(item: Item) -> str:
    """The items that go together have the same one."""
    return f"{item.op}-{item.label}"


def pays(items: Mapping[str, Item], workers: int) -> bool:
    """Whether there are groups enough to keep all workers busy."""
    return len({group(item) for item in items.values()}) >= ENOUGH * workers
