"""Shared memory of the blocks of a chunk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmux.emulator.memory.shared_address import Bases, Spot, total
from kernelmux.emulator.memory.shared_races import AccessStamps

if TYPE_CHECKING:
    from kernelmux.emulator.analysis.variables import Gap
    from kernelmux.emulator.running.group import Group

STRIDE = 256  # windows begin at multiples of this, so that every vector access has its own row index
POISON = 0xFF  # what uninitialised bytes hold: NaN in every float type


class SharedWindows:
    """`bytes[b]` is the window of block b; `size` bytes of it are legal, `dynamic` of them were asked for at launch."""

    def __init__(self, geometry: Any, size: int, dynamic: int, checks: str, gaps: Sequence[Gap] = ()) -> None:
        self.size, self.dynamic = size, dynamic
        self.gaps = [gap for gap in gaps if gap.low < size]
        self.stride = max(STRIDE, -(-size // STRIDE) * STRIDE)
        self.bytes = np.full((geometry.blocks, self.stride), POISON, np.uint8)
        self.blocks = geometry.blocks
        self.shadow = AccessStamps(geometry, self.stride) if checks == "full" else None
        self.bases = Bases(self.stride, size, exact=checks == "full")
        self._views: dict[tuple[Any, int], np.ndarray] = {}

    def view(self, dtype: np.dtype[Any], count: int = 1) -> np.ndarray:
        """All windows, one after another, as elements or rows of `count` elements."""
        view = self._views.get((dtype, count))
        if view is None:
            view = self.bytes.reshape(-1).view(dtype)
            view = self._views[dtype, count] = view if count == 1 else view.reshape(-1, count)
        return view

    def load(self, group: Group, address: Any, dtype: np.dtype[Any], count: int, wanted: Any = None) -> Any:
        """Reads one element, or a row of `count`, per lane; wanted: the elements that are used."""
        spot = self.spot(group, address, dtype.itemsize * count, False)
        if self.shadow is not None:
            self.shadow.read(group, spot, wanted)
        view, rows = self.view(dtype, count)[spot.start :], spot.rows
        return view.take(rows, axis=0) if rows.__class__ is np.ndarray else view[rows]

    def spot(self, group: Group, address: Any, size: int, write: bool) -> Spot:
        """The checked place of an access; address: offsets, or a pair as of `Action.near`."""
        if address.__class__ is tuple:
            register, distance = address
            spot = self.bases.spot(group.lanes, register, distance, size)
            if spot is not None and not self._near_gap(spot):
                return spot
            address = total(address)
        position, low, high = self.position(group, address, size, write)
        return Spot(position >> (size.bit_length() - 1), 0, size, low, high)

    def _near_gap(self, spot: Spot) -> bool:
        low, end = spot.low, spot.high + spot.size
        for gap in self.gaps if self.shadow is not None else ():
            if low < gap.high and end > gap.low:
                return True
        return False

    def check(self, group: Group, offset: Any, size: int, write: bool) -> tuple[int, int]:
        """Fails unless all accesses are aligned and inside; returns offsets at and below, at and above all of them."""
        if offset.__class__ is not np.ndarray:
            if offset < 0 or offset + size > self.size or offset & (size - 1):
                self._fail(group, np.full(group.n, offset), size, write)
            for gap in self.gaps if self.shadow is not None else ():
                self._require_outside(gap, group, np.full(group.n, offset), size, write)
            return int(offset), int(offset)
        union = int(np.bitwise_or.reduce(offset))  # not below the largest offset, and odd if one of them is odd
        if union & (size - 1) or union < 0:
            self._fail(group, offset, size, write)
        if self.shadow is None and union + size <= self.size:
            return 0, union
        high = int(np.maximum.reduce(offset))
        if high + size > self.size:
            self._fail(group, offset, size, write)
        low = int(np.minimum.reduce(offset))
        for gap in self.gaps:
            if low < gap.high and high + size > gap.low:
                self._require_outside(gap, group, offset, size, write)
        return low, high

    def _require_outside(self, gap: Gap, group: Group, offset: np.ndarray, size: int, write: bool) -> None:
        """Fails if an access meets the bytes behind a variable."""
        bad = (offset < gap.high) & (offset + size > gap.low)
        if bad.any():
            verb = "write" if write else "read"
            behind = int(offset[bad][0]) - gap.low
            place = f"{behind} bytes behind the end of" if behind >= 0 else "over the end of"
            group.fail("out of bounds", f"{verb} of {size} bytes of shared memory {place} {_plain_name(gap.name)}", bad)

    def position(self, group: Group, offset: Any, size: int, write: bool) -> tuple[Any, int, int]:
        """Checked byte positions in the windows laid end to end; offsets at and below, at and above all of them."""
        low, high = self.check(group, offset, size, write)
        return offset + group.lanes.shared_base(self.stride) if self.blocks > 1 else offset, low, high

    def locate(self, group: Group, offset: Any, size: int, write: bool) -> Any:
        """Checked byte positions in the windows laid end to end."""
        return self.position(group, offset, size, write)[0]

    def _fail(self, group: Group, offset: np.ndarray, size: int, write: bool) -> None:
        verb = "write" if write else "read"
        outside = (offset < 0) | (offset + size > self.size)
        if outside.any():
            detail = f" ({self.dynamic} of them dynamic)" if self.dynamic else ""
            place = f"offset {offset[outside][0]} of shared memory, which has {self.size} bytes{detail}"
            group.fail("out of bounds", f"{verb} of {size} bytes at {place}", outside)
        odd = offset & (size - 1) != 0
        group.fail(
            "misaligned",
            f"{verb} of {size} bytes of shared memory at offset {offset[odd][0]}, no multiple of {size}",
            odd,
        )

    def synchronise(self, blocks: Any) -> None:
        """A barrier: accesses before and after it are ordered, in these blocks (None: in all)."""
        if self.shadow is not None:
            self.shadow.synchronise(blocks)

    def synchronise_warps(self, group: Group) -> None:
        """bar.warp.sync: accesses are ordered among the lanes of each warp of the group."""
        if self.shadow is not None:
            self.shadow.synchronise_warps(group.warp)


def _plain_name(name: str) -> str:
    """The last part of a mangled name: `_ZZ6kernelE4tile` is tile."""
    match = re.search(r"E(\d+)(\w+)$", name)
    return match[2][: int(match[1])] if match else name
