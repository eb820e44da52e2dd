"""Which worker process runs which items: on a CPU those of a variant together, where there are enough variants for all.

A kernel that one check has compiled is then there for the next one, already read and translated where it is emulated.
On GPUs compiled kernels are kept on disk, so any process may run any item; but no two should compile the same at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

from xdist.scheduler import LoadScopeScheduling

from kernelmux.conformance.plan import Item

QUICK = {"claims", "devices", "gradients", "graphs", "selection", "signature", "streams"}  # below a second on an H200
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


def mixed(items: Iterable[Item]) -> list[Item]:
    """The items in an order for GPUs: neighbours are of different variants, and mostly of different checks.

    A variant's first item then compiles for those behind it, and what waits for a lock (`alone`) does not stand in a row.
    What takes a moment comes last, so that all processes end at about the same time.
    """
    every = list(items)
    return [*_in_turns(i for i in every if i.check not in QUICK), *_in_turns(i for i in every if i.check in QUICK)]


def _in_turns(items: Iterable[Item]) -> list[Item]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(group(item), []).append(item)
    turned = (found[n % len(found) :] + found[: n % len(found)] for n, found in enumerate(groups.values()))
    return [item for row in zip_longest(*turned) for item in row if item is not None]


def pays(items: Mapping[str, Item], workers: int) -> bool:
    """Whether there are groups enough to keep all workers busy."""
    return len({group(item) for item in items.values()}) >= ENOUGH * workers
