"""In which order items begin, how long each may take, and what it needs.

On a CPU the items of a variant go together, where there are enough variants for all worker processes.

A kernel that one check has compiled is then there for the next one, already read and translated where it is emulated.
On GPUs compiled kernels are kept on disk, so any process may run any item; but no two should compile the same at a time,
and what takes long has to begin early.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby, zip_longest

from kernelmux.conformance.session.plan import Item

# Seconds of an item on an H200 with empty caches of compilers, about: kernels of cuda and torch_ref; others take OTHERS as
# many times as long, for Triton compiles each dtype and pattern of strides anew. What is not listed takes a moment.
SECONDS = {
    "accuracy": 6.0,
    "ambience": 5.0,
    "layout": 6.0,
    "memory": 5.0,
    "shapes": 4.0,
    "torch": 4.0,
    "state": 3.0,
    "offsets": 2.0,
    "scalars": 2.0,
    "gradients": 1.0,
    "extent": 1.0,
    "exact": 1.0,
    "special_values": 1.0,
}
FAST, OTHERS = ("cuda", "torch_ref"), 6.0
MOMENT = 0.2
ALONE = {"offsets"}  # checks that take gigabytes of a GPU, one process at a time (`memory_turn`)
TWO = {"devices"}  # checks that ask about a second GPU, where there is one
PART = 24  # variants that are asked at a time where what passes goes on record
ENOUGH = 8  # groups for each worker: with fewer, some would be without work at the end for long
SHARE = 0.6  # of a GPU's memory for each of ALONE, so that two never meet
# Seconds after which an item hangs, by tier, and so many times what it is expected to take.
LIMITS = {"smoke": 900.0, "ci": 1800.0, "full": 7200.0, "huge": 28800.0}
TIMES = 20.0


def expected(item: Item, seconds: Mapping[str, float]) -> float:
    """The seconds that an item took in an earlier run, or takes by its check and backend."""
    if item.id in seconds:
        return seconds[item.id]
    return SECONDS[item.check] * (1.0 if item.backend in FAST else OTHERS) if item.check in SECONDS else MOMENT


def limit(usual: float, tier: str) -> float:
    """The seconds after which a process that runs an item, which usually takes so many, is ended."""
    return max(LIMITS[tier], TIMES * usual)


def gpus(item: Item, shared: int) -> int:
    """How many GPUs an item needs of those that there are."""
    return min(shared, 2 if item.check in TWO else 1)


def memory(item: Item, room: int) -> int:
    """The bytes of a GPU with so many that an item may take, 0 where that is little."""
    return int(SHARE * room) if item.check in ALONE else 0


def ordered(items: Iterable[Item], seconds: Mapping[str, float], device: str, in_parts: bool = False) -> list[Item]:
    """The items of a run without a limit of time, in the order in which they begin.

    On a CPU those that took longest in an earlier run come first. in_parts: some operators after the others.
    """
    if device == "cuda":
        return [item for part in (parts(items) if in_parts else [items]) for item in mixed(part, seconds)]
    return sorted(items, key=lambda i: -seconds.get(i.id, 1e9 if seconds else 0))


def group(item: Item) -> str:
    """The items that go together have the same one."""
    return f"{item.op}-{item.label}"


def mixed(items: Iterable[Item], seconds: Mapping[str, float]) -> list[Item]:
    """The items in an order for GPUs: those that take longest first, neighbours mostly of different variants.

    A variant's first item then compiles for those behind it. What takes a moment comes last, so that all processes end
    at about the same time. What waits for its turn on a GPU (`ALONE`) is spread over all of it.
    """
    kinds: dict[float, list[Item]] = {}
    for item in items:
        kinds.setdefault(expected(item, seconds), []).append(item)
    order = [item for _, found in sorted(kinds.items(), reverse=True) for item in _in_turns(found)]
    waiting = [item for item in order if item.check in ALONE]
    found = [item for item in order if item.check not in ALONE]
    places = [n * len(found) // (len(waiting) + 1) for n in range(1, len(waiting) + 1)]
    for place, item in reversed(list(zip(places, waiting, strict=True))):
        found.insert(place, item)
    return found


def parts(items: Iterable[Item]) -> list[list[Item]]:
    """Whole operators, `PART` variants or more together: asked one after the other, a run that is stopped has some done."""
    found: list[list[Item]] = [[]]
    for _, of in groupby(items, lambda item: item.op):
        if len({group(item) for item in found[-1]}) >= PART:
            found.append([])
        found[-1] += of
    return found


def _in_turns(items: Iterable[Item]) -> list[Item]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(group(item), []).append(item)
    turned = (found[n % len(found) :] + found[: n % len(found)] for n, found in enumerate(groups.values()))
    return [item for row in zip_longest(*turned) for item in row if item is not None]


def pays(items: Iterable[Item], workers: int) -> bool:
    """Whether there are groups enough to keep all workers busy."""
    return len({group(item) for item in items}) >= ENOUGH * workers
