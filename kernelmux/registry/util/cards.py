"""GPUs as data: what selection, launchers and compilers may ask about the card at hand, or about one that is not there.

`of(index)` is the card of a CUDA device, read from the device; of(-1) is the one that the emulator stands for: an H200, or
what KERNELMUX_EMULATED_GPU names ("rtx4090", "sm_89", "8.9", or as the driver does). `cards.toml` is the table, with the
source of each number.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from kernelmux.registry.errors import ArgumentError, shown, unknown

VARIABLE = "KERNELMUX_EMULATED_GPU"
AS_VARIABLE = "KERNELMUX_GPU_AS"
FILE = Path(__file__).with_name("cards.toml")
DEFAULT = "h200"  # which the emulator stands for
KIB, MIB = 1 << 10, 1 << 20

# By compute capability: KiB of shared memory that a block may ask for, and of a multiprocessor; threads of the latter.
LIMITS = {
    (7, 5): (64, 64, 1024),
    (8, 0): (163, 164, 2048),
    (8, 6): (99, 100, 1536),
    (8, 7): (163, 164, 1536),
    (8, 9): (99, 100, 1536),
    (9, 0): (227, 228, 2048),
    (10, 0): (227, 228, 2048),
    (10, 3): (227, 228, 2048),
    (11, 0): (227, 228, 1536),
    (12, 0): (99, 100, 1536),
    (12, 1): (99, 100, 1536),
}
CAPABILITIES = tuple(LIMITS)
# The first compute capability whose tensor cores multiply a format.
SINCE = {
    **{"fp16": (7, 5), "i8": (7, 5), "bf16": (8, 0), "tf32": (8, 0)},
    **{"e4m3": (8, 9), "e5m2": (8, 9)},
}


@dataclass(frozen=True, eq=False)
class Card:
    """A GPU. Sizes in bytes, bandwidth in bytes/s, rates in flop/s (of i8 operations/s) of dense products by format.

    key: its name here. shared_per_block: the most that a block may ask for (opt-in), static and dynamic together.
    threads: of a multiprocessor.
    """

    key: str
    title: str
    capability: tuple[int, int]
    processors: int
    shared_per_block: int
    shared_per_processor: int
    threads: int
    l2: int
    memory: int
    bandwidth: float
    rates: Mapping[str, float] = field(repr=False)
    device: str = field(default="", repr=False)
    source: str = field(default="", repr=False)
    registers: int = 65536

    def __str__(self) -> str:
        return self.title

    @property
    def sm(self) -> str:
        """sm_89."""
        return "sm_{}{}".format(*self.capability)

    @property
    def number(self) -> str:
        """8.9."""
        return "{}.{}".format(*self.capability)

    @property
    def arch(self) -> str:
        """The target of compilers; from sm_90 on the "a" variant, which alone has wgmma and setmaxnreg."""
        return self.sm + ("a" if self.capability >= (9, 0) else "")

    def multiplies(self, format: str) -> bool:
        """Whether its tensor cores take a format: fp16, bf16, tf32, e4m3, e5m2 or i8."""
        return self.capability >= SINCE[format]


@cache
def table() -> Mapping[str, Card]:
    """The cards by name."""
    return MappingProxyType({key: _card(key, row) for key, row in tomllib.loads(FILE.read_text("utf-8")).items()})


def _card(key: str, row: dict[str, Any]) -> Card:
    major, minor = map(int, row["capability"].split("."))
    block, processor, threads = LIMITS[major, minor]
    rates = MappingProxyType({name: rate * 1e12 for name, rate in row["rates"].items()})
    return Card(
        key,
        row["title"],
        (major, minor),
        row["processors"],
        block * KIB,
        processor * KIB,
        threads,
        row["l2"] * MIB,
        row["memory"] * MIB,
        row["bandwidth"] * 1e9,
        rates,
        row["device"],
        row["source"],
    )


def named(name: str, where: str = "card") -> Card:
    """A card by its name, "rtx4090", or by its compute capability, "sm_89" or "8.9": the first of the table with it.

    Also by what the driver calls it, "NVIDIA H100 80GB HBM3", which is its title then. ArgumentError, which names `where`,
    for another one.
    """
    text = name.strip().lower() if isinstance(name, str) else ""
    if text in table():
        return table()[text]
    if number := re.fullmatch(r"(?:sm_)?([1-9]\d?)\.?(\d)a?", text, re.ASCII):
        return with_capability((int(number[1]), int(number[2])), where)
    if found := next((card for card in table().values() if text and _has(name, card.device)), None):
        return replace(found, title=name.strip())
    if not isinstance(name, str):
        raise ArgumentError(f"{where}: expected the name of a card or a compute capability, got {shown(name)}")
    raise unknown("card", name, tuple(table()), where)


def with_capability(capability: tuple[int, int], where: str = "card") -> Card:
    """A card of this compute capability: the first of the table, or one like it with its limits."""
    exact = [card for card in _representatives() if card.capability == capability]
    if exact:
        return exact[0]
    if capability not in LIMITS:
        known = ", ".join("{}.{}".format(*c) for c in CAPABILITIES)
        raise ArgumentError(f"{where}: expected a compute capability of {known}, got {capability[0]}.{capability[1]}")
    like = [card for card in _representatives() if card.capability <= capability][-1]
    block, processor, threads = LIMITS[capability]
    return replace(
        like,
        key="sm_{}{}".format(*capability),
        title="a GPU of compute capability {}.{}".format(*capability),
        capability=capability,
        shared_per_block=block * KIB,
        shared_per_processor=processor * KIB,
        threads=threads,
    )


@cache
def _representatives() -> tuple[Card, ...]:
    """A card for each capability: the one in most hands first."""
    first = [table()[key] for key in ("t4", "a100", "rtx3090", "rtx4090", DEFAULT, "b200", "b300", "rtx5090", "gb10")]
    return tuple(sorted(first, key=lambda card: card.capability))


# --- the card at hand -----------------------------------------------------------------------------------------------

_standing: Card | None = None  # what `stand_for` says, before the variable
_changed: list[Callable[[], object]] = []


def emulated() -> Card:
    """The card that the emulator stands for."""
    return _standing or _by_variable(os.environ.get(VARIABLE, ""), VARIABLE) or table()[DEFAULT]


@cache
def _by_variable(name: str, variable: str) -> Card | None:
    return named(name, variable) if name.strip() else None


def of(index: int) -> Card:
    """The card of a CUDA device; of -1 the one that the emulator stands for."""
    return emulated() if index < 0 else _device(index)


def of_tensor(x: torch.Tensor) -> Card:
    """The card that a tensor is on; of a CPU tensor the one that the emulator stands for."""
    return of(x.get_device()) if x.is_cuda else emulated()


def lesser() -> Card | None:
    """The card that the GPUs of this machine stand for, by KERNELMUX_GPU_AS."""
    return _by_variable(os.environ.get(AS_VARIABLE, ""), AS_VARIABLE)


@cache
def _device(index: int) -> Card:
    """A CUDA device by what it says of itself; KERNELMUX_GPU_AS lets it stand for a lesser card, for its rungs."""
    found = _read(torch.cuda.get_device_properties(index))
    other = lesser()
    if other and other.capability > found.capability:
        raise ArgumentError(
            f"{AS_VARIABLE}: expected a card of at most {found.sm}, as here, got {other.key}, {other.sm}"
        )
    return other or found


def _read(told: Any) -> Card:
    """The table's card with everything that a device says of itself."""
    capability = (told.major, told.minor)
    if capability in LIMITS:
        like = with_capability(capability)
    else:  # newer than the table, or older than what it has
        older = [c for c in _representatives() if c.capability <= capability] or [_representatives()[0]]
        like = replace(older[-1], capability=capability)
    like = by_device_name(told.name, capability) or like
    processors = int(told.multi_processor_count)
    rates = like.rates
    if processors != like.processors:  # another card of the kind: units and clocks about in proportion
        rates = MappingProxyType({name: rate * processors / like.processors for name, rate in rates.items()})
    return replace(
        like,
        title=told.name,
        processors=processors,
        shared_per_block=int(getattr(told, "shared_memory_per_block_optin", 0)) or like.shared_per_block,
        shared_per_processor=int(getattr(told, "shared_memory_per_multiprocessor", 0)) or like.shared_per_processor,
        threads=int(getattr(told, "max_threads_per_multi_processor", 0)) or like.threads,
        registers=int(getattr(told, "regs_per_multiprocessor", 0)) or like.registers,
        l2=int(getattr(told, "L2_cache_size", 0)) or like.l2,
        memory=int(told.total_memory),
        bandwidth=_bandwidth(told) or like.bandwidth,
        rates=rates,
    )


def by_device_name(name: str, capability: tuple[int, int]) -> Card | None:
    """The card of the table that the driver means by a name, "NVIDIA H100 80GB HBM3"; None for one that is not there."""
    return next((c for c in table().values() if c.capability == capability and _has(name, c.device)), None)


def _has(name: str, words: str) -> bool:
    """Whether a device's name has these words: "L40S" is no "L4"."""
    return bool(re.search(rf"\b{re.escape(words)}\b", name))


def _bandwidth(told: Any) -> float:
    """Bytes/s of memory by its clock (kHz) and the width of its bus (bits), two transfers a cycle; 0 if not told."""
    clock, width = getattr(told, "memory_clock_rate", 0), getattr(told, "memory_bus_width", 0)
    return 2.0 * clock * 1000 * width / 8


def for_call(device: torch.device, capability: tuple[int, int] | None, hypothetical: bool) -> Card | None:
    """The card that a call runs on: by the capability alone where the call is hypothetical; None for a call on no GPU."""
    if capability is None:
        return None
    if device.type == "cuda" and not hypothetical and torch.cuda.is_available():
        return of(torch.cuda.current_device() if device.index is None else device.index)
    card = emulated()
    return card if card.capability == capability else with_capability(capability)


def reread() -> None:
    """Read the devices and the variables again: for a program that sets these."""
    _device.cache_clear()
    for forget in _changed:
        forget()


def stands_in(index: int) -> bool:
    """Whether a CUDA device stands for a card of an earlier compute capability."""
    return of(index).capability != torch.cuda.get_device_capability(index)


def capability_of(index: int) -> tuple[int, int]:
    """The compute capability of a CUDA device, or of the lesser card that it stands for."""
    return of(index).capability


R = TypeVar("R")


def remembered(function: Callable[..., R]) -> Callable[..., R]:
    """Remembers what a launcher made of shapes, strides, dtypes and device, until another card is emulated.

    4096 kinds of call are enough for a model.
    """
    found = lru_cache(maxsize=4096)(function)
    when_changed(found.cache_clear)
    return found


def when_changed(forget: Callable[[], object]) -> None:
    """Have this called whenever another card is emulated: for what a module remembers of the card."""
    _changed.append(forget)


def stand_for(card: Card | None) -> None:
    """Let the emulator stand for a card in this process; None: what the variable says."""
    global _standing
    if card is not _standing:
        _standing = card
        forget()


def forget() -> None:
    """Forget what launchers made of shapes, and what modules remember of the card: it is worked out anew."""
    for one in _changed:
        one()


@contextmanager
def standing_for(name: str | Card) -> Iterator[Card]:
    """Inside the `with`, the emulator stands for this card, in the whole process."""
    before, card = _standing, name if isinstance(name, Card) else named(name)
    stand_for(card)
    try:
        yield card
    finally:
        stand_for(before)
