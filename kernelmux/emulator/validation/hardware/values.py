"""Operands: special values in every combination, then random ones that lie where the rounding is hard."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Kind:
    """A type of operands: its bytes in memory, its special values as bits, and how random ones are made of bits."""

    size: int
    special: tuple[int, ...]
    draw: Callable[[Array], Array]

    @property
    def bits(self) -> np.dtype[Any]:
        """The unsigned integer of its size."""
        return np.dtype(f"u{self.size}")


def random_bits(name: str, count: int) -> Array:
    """uint64, the same in every version of numpy."""
    bits: Array = np.random.PCG64(zlib.crc32(name.encode())).random_raw(count)
    return bits


def operands(name: str, kinds: Sequence[str], count: int) -> list[Array]:
    """`count` values of each kind as bits. A single operand of 16 bits takes all its values."""
    if len(kinds) == 1 and KINDS[kinds[0]].size == 2:
        return [np.arange(65536, dtype=np.uint16)]
    arrays = [KINDS[kind].draw(random_bits(f"{name} {i}", count)) for i, kind in enumerate(kinds)]
    combined = np.array(list(product(*(KINDS[kind].special for kind in kinds))), np.uint64)
    chosen = combined[:: -(-len(combined) // (count // 2))]
    for i, kind in enumerate(kinds):
        arrays[i][: len(chosen)] = chosen[:, i].astype(KINDS[kind].bits)
    return arrays


def cancel(arrays: list[Array], kinds: Sequence[str]) -> None:
    """Every third last operand becomes the negative product of the first two, as well as its type can hold it."""
    formats = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
    if kinds[0] not in formats:
        return
    a, b, c = (x.view(formats[kinds[0]])[::3] for x in arrays[:3])
    with np.errstate(all="ignore"):
        c[len(c) // 3 :] = (-(a * b))[len(c) // 3 :]


# --- the kinds ------------------------------------------------------------------------------------------------


def _integer(size: int) -> Kind:
    bits = 8 * size
    top, mask = 1 << bits - 1, (1 << bits) - 1
    special = (0, 1, 2, 3, 31, 32, 33, top - 1, top, top + 1, mask, mask - 1, 0x5555555555555555 & mask)

    def draw(raw: Array) -> Array:
        """Of every length in bits, half of them negative."""
        kept: Array = raw >> (raw >> np.uint64(7)) % np.uint64(bits) << np.uint64(64 - bits) >> np.uint64(64 - bits)
        return np.where(raw & np.uint64(1), kept, ~kept).astype(f"u{size}")

    return Kind(size, special, draw)


def _small(most: int) -> Kind:
    """32-bit numbers that are amounts of bits or numbers of lanes, some too large."""

    def draw(raw: Array) -> Array:
        return np.where(raw >> np.uint64(60), raw % np.uint64(most), raw >> np.uint64(32)).astype(np.uint32)

    return Kind(4, (0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 255, 0x80000000, 0xFFFFFFFF), draw)


def _float(size: int, digits: int) -> Kind:
    """Special values; then mostly values around 1, so that sums and products need rounding, and a third anything."""
    bits = 8 * size
    sign, one = 1 << bits - 1, ((1 << bits - digits - 1) - 1) << digits - 1
    infinity, last = ((1 << bits - digits) - 1) << digits - 1, 1 << digits - 1
    special = (
        0,
        1,
        last - 1,
        last,
        last + 1,
        one - 1,
        one,
        one + 1,
        one + last,
        infinity - 1,
        infinity,
        infinity + last // 2,
    )
    spread = np.uint64(min(8, (1 << bits - digits) // 4))

    def draw(raw: Array) -> Array:
        whole = raw >> np.uint64(64 - bits)
        exponent = (raw >> np.uint64(3)) % (2 * spread + np.uint64(1)) + np.uint64(one >> digits - 1) - spread
        near = (whole & np.uint64(sign | last - 1)) | exponent << np.uint64(digits - 1)
        return np.where(raw % np.uint64(3) == 0, whole, near).astype(f"u{size}")

    return Kind(size, (*special, *(value | sign for value in special)), draw)


def _pair(half: Kind) -> Kind:
    """Two values side by side."""
    shift, kind = np.uint64(8 * half.size), f"u{2 * half.size}"
    special = tuple(low | high << 8 * half.size for low, high in zip(half.special, reversed(half.special), strict=True))

    def draw(raw: Array) -> Array:
        low, high = half.draw(raw), half.draw(raw << np.uint64(29) ^ raw)
        return (low.astype(np.uint64) | high.astype(np.uint64) << shift).astype(kind)

    return Kind(2 * half.size, special, draw)


def _within(low: float, high: float) -> Kind:
    """float32 between two numbers, evenly."""

    def draw(raw: Array) -> Array:
        return (low + (high - low) * ((raw >> np.uint64(11)) * 2.0**-53)).astype(np.float32).view(np.uint32)

    return Kind(4, _float(4, 24).special, draw)


def _predicate() -> Kind:
    return Kind(4, (0, 1), lambda raw: (raw >> np.uint64(40) & np.uint64(1)).astype(np.uint32))


def _alike() -> Kind:
    """32-bit numbers of which few are different."""
    return Kind(4, (0, 1), lambda raw: (raw >> np.uint64(40) & np.uint64(3)).astype(np.uint32))


F16, BF16 = _float(2, 11), _float(2, 8)
KINDS: dict[str, Kind] = {
    **{f"{letter}{8 * size}": _integer(size) for letter in "sub" for size in (1, 2, 4, 8)},
    **{"f16": F16, "bf16": BF16, "f32": _float(4, 24), "f64": _float(8, 53)},
    **{"f16x2": _pair(F16), "bf16x2": _pair(BF16), "f16x4": _pair(_pair(F16)), "bf16x4": _pair(_pair(BF16))},
    **{"e4m3x2": _integer(2), "e5m2x2": _integer(2)},
    **{"amount": _small(65), "lane": _small(32), "pred": _predicate(), "alike": _alike()},
    **{"angle": _within(-4, 4), "power": _within(-160, 140), "tf32": _float(4, 24)},
}
