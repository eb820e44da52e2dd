"""Where the lanes of one access go in shared memory.

Unrolled code makes many accesses at constant distances from one register. What follows from the register alone, its
bounds and the rows that it points to, is computed once; an access then only moves the start of what it indexes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kernelmux.emulator.running.lanes import Lanes

MOST_BASES = 3  # that are remembered: more of them keep memory from being used again


@dataclass(slots=True)
class Spot:
    """Lane i accesses row `start + rows[i]` of rows of `size` bytes, windows end to end.

    low and high are at and below, at and above all offsets in a window.
    """

    rows: Any
    start: int
    size: int
    low: int
    high: int


class Base:
    """A register that addresses of shared memory are near to."""

    __slots__ = ("_rows", "exact", "high", "lanes", "low", "stride", "union", "values")

    def __init__(self, values: np.ndarray, lanes: Lanes, stride: int) -> None:
        """stride: bytes of a window."""
        self.values, self.lanes, self.stride = values, lanes, stride
        offsets = values.view(np.uint32)
        self.union = int(np.bitwise_or.reduce(offsets))  # not below the largest, and odd if one of them is odd
        self.low, self.high, self.exact = 0, self.union, False
        self._rows: dict[int, np.ndarray] = {}

    def look(self) -> None:
        """Finds the least and the largest offset."""
        offsets = self.values.view(np.uint32)
        self.low, self.high, self.exact = int(np.minimum.reduce(offsets)), int(np.maximum.reduce(offsets)), True

    def rows(self, size: int) -> np.ndarray:
        """The rows of `size` bytes that the register points to."""
        rows = self._rows.get(size)
        if rows is None:
            positions = self.values.view(np.uint32) + self.lanes.shared_base(self.stride)
            rows = self._rows[size] = positions >> (size.bit_length() - 1)
        return rows


class Bases:
    """The registers that accesses were near to lately."""

    def __init__(self, stride: int, size: int, exact: bool) -> None:
        """stride: bytes of a window, size: how many of them are legal; exact: spots need exact bounds."""
        self.stride, self.size, self.exact = stride, size, exact
        self._known: dict[int, Base] = {}

    def spot(self, lanes: Lanes, values: Any, distance: int, size: int) -> Spot | None:
        """Where `values + distance` is; None unless it is aligned and inside for all that is known."""
        if values.__class__ is not np.ndarray or distance < 0:
            return None
        base = self._known.get(id(values))
        if base is None or base.lanes is not lanes:
            base = self._remember(lanes, values)
        if (base.union | distance) & (size - 1):
            return None
        if not base.exact and (self.exact or base.high + distance + size > self.size):
            base.look()
        if base.high + distance + size > self.size:
            return None
        start = distance >> (size.bit_length() - 1)
        return Spot(base.rows(size), start, size, base.low + distance, base.high + distance)

    def _remember(self, lanes: Lanes, values: np.ndarray) -> Base:
        if len(self._known) >= MOST_BASES:
            del self._known[next(iter(self._known))]
        base = self._known[id(values)] = Base(values, lanes, self.stride)  # keeps the array, and so its id
        return base


def total(address: Any) -> Any:
    """An address as one number per lane; the sum wraps at 32 bits."""
    if address.__class__ is not tuple:
        return address
    values, distance = address
    return (values.view(np.uint32) + np.uint32(distance & 0xFFFFFFFF)).astype(np.int64)
