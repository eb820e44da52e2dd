"""A run within a number of minutes: what it asks in any case, what comes next, and when an item has to stop.

Required are the specs, the accuracy of the variant that each backend picks by itself, and every check on a few operators
of each backend. Of the rest come first the variants that no GPU has verified as they stand, then those that a call picks by
itself; of these the quick ones first. An item stops behind the trial in which its share of the time is used up: the time
that is left, shared out evenly among the items that are left. What does not begin in time is reported as not asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from zlib import crc32

import torch

from kernelmux.conformance.check import SPEC
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import scheduling
from kernelmux.conformance.session.plan import Item
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.conditions import Capability
from kernelmux.registry.util import cards

# Minutes of a run of everything, and of one operator, by device and tier; larger tiers have no limit. Behind the last
# trial a run still writes its reports, so these are a little less than what they are to take: 3 and 5 minutes on two cores
# without a GPU; on a GPU with 16 cores 90 seconds and 5 minutes, and 20 seconds for one operator.
WHOLE = {"cpu": {"smoke": 2.5, "ci": 4.4}, "cuda": {"smoke": 1.15, "ci": 4.6}}
ONE = {"cpu": 4.4, "cuda": 0.23}
IMPORTS = ("torch", "memory", "ambience")  # checks that import torch's compiler, for seconds: these begin first
EVERY_CHECK = 2  # operators of each backend on which each check is asked in any case
# What is asked, emulated, of a variant that passed on a GPU: where the emulator sees more than that, or compilers and
# torch of this machine decide; and `thresholds`, which no GPU has been asked yet.
EMULATED_TOO = frozenset(
    "accuracy memory repeatability compile_only claims signature selection gradients torch parity thresholds".split()
)
VERIFIED = "passed on a GPU as it stands; --tier ci --anew asks it here too"


def usual(options: Options) -> float:
    """The minutes of a run that names none: 0 (no limit) where cases, dtypes or checks are chosen, or a larger tier."""
    limits = WHOLE[options.device]
    chosen = options.checks or options.cases or options.dtypes or options.only or options.seeds or options.impl
    if chosen or options.tier not in limits:
        return 0.0
    whole = limits[options.tier]
    return min(whole, ONE[options.device] * len(options.ops)) if options.ops else whole


@dataclass(frozen=True)
class Share:
    """What an item may take. seconds: no trial begins after so many; required: it is asked in any case."""

    seconds: float = math.inf
    required: bool = False


def not_asked(options: Options) -> str:
    return f"not asked: {duration_text(options.minutes)} were too short for it; --tier ci has no limit"


def duration_text(minutes: float) -> str:
    """2.5 minutes, 16 s."""
    return f"{minutes:g} minutes" if minutes > 1 else f"{60 * minutes:.0f} s"


def verified(item: Item, options: Options) -> bool:
    """Whether a GPU has verified the variant as it stands."""
    return f"{item.op}/{item.label}" in options.verified


def passed_over(item: Item, options: Options) -> bool:
    """Whether an item says no more than the ledger: what a GPU has verified, on a machine without one."""
    if item.backend == SPEC or options.device != "cpu" or not verified(item, options):
        return False
    return item.check not in EMULATED_TOO and registered.emulates(item.backend, options.where)


def required(items: Sequence[Item], seconds: dict[str, float], elsewhere: bool = False) -> set[str]:
    """The ids of the items that are asked in any case; of one operator each check on one backend, of many on each.

    elsewhere: for GPUs that this machine does not know.
    """
    picked = {i.id for i in items if not i.problem and _picked(i, elsewhere)}
    found = {i.id for i in items if i.problem or i.backend == SPEC or (i.check == "accuracy" and i.id in picked)}
    few = len({i.op for i in items}) <= EVERY_CHECK
    kinds: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        if item.id in picked:
            kinds.setdefault(("" if few else item.backend, item.check), []).append(item)
    for alike in kinds.values():
        found.update(i.id for i in (_kernels_first(alike)[:1] if few else _quick_first(alike, seconds)[:EVERY_CHECK]))
    return found


def _quick_first(items: list[Item], seconds: dict[str, float]) -> list[Item]:
    return sorted(items, key=lambda i: scheduling.expected(i, seconds))


def _kernels_first(items: list[Item]) -> list[Item]:
    """Backends with kernels of their own before those made of torch's, in another order for each check."""
    return sorted(items, key=lambda i: (registered.composite(i.backend), crc32(f"{i.backend} {i.check}".encode())))


def _picked(item: Item, elsewhere: bool = False) -> bool:
    """Whether it is about the variant that its backend picks by itself: the last of its ladder that is for this GPU.

    elsewhere: for any that the table of cards knows.
    """
    if not item.variant:
        return False
    here = [cards.of(torch.cuda.current_device() if torch.cuda.is_available() else -1)]
    found = cards.table().values() if elsewhere else here
    return item.variant in {_last(item.backend, item.op, one) for one in {card.capability for card in found}}


def _last(backend: str, op: str, capability: tuple[int, int]) -> str:
    ladder = registered.variants(backend, op)
    found = (v for v, i in reversed(ladder.items()) if _admits(i, capability))
    return next(found, next(reversed(ladder)))


def _admits(implementation: Implementation, capability: tuple[int, int]) -> bool:
    """Whether a variant is for GPUs of this capability, the emulated one too."""
    return all(c.admits(capability) for c in implementation.requires if isinstance(c, Capability))


def ordered(items: Sequence[Item], options: Options, asked: Set[str], seconds: dict[str, float]) -> list[Item]:
    """The items in the order in which a run with a budget asks them: the required ones first, the longest of these first.

    Then as the docstring of this module says, without a GPU those of a variant together; what says no more than the
    ledger comes last, and takes no time.
    """
    expected = {i.id: scheduling.expected(i, seconds) for i in items}
    together: dict[str, float] = {}
    for item in items:
        together[scheduling.group(item)] = together.get(scheduling.group(item), 0.0) + expected[item.id]

    def key(item: Item) -> tuple[float | str, ...]:
        if item.id in asked:
            return (0, item.check not in IMPORTS, -expected[item.id])
        kind = (1, passed_over(item, options), verified(item, options), not _picked(item, options.elsewhere))
        group = (together[scheduling.group(item)], scheduling.group(item)) if options.device == "cpu" else ()
        return (*kind, *group, expected[item.id])

    return sorted(items, key=key)
