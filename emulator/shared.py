"""Shared memory of the blocks of a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmux.emulator.shadow import Shadow

if TYPE_CHECKING:
    from kernelmux.emulator.group import Group

STRIDE = 256  # rows begin at multiples of this, so that every vector access has its own row index
POISON = 0xFF  # what uninitialised bytes hold: NaN in every float type


class SharedMemory:
    """`bytes[b]` is the window of block b; `size` bytes of it are legal, `dynamic` of them were asked for at launch."""

    def __init__(self, geometry: Any, size: int, dynamic: int, checks: str) -> None:
        self.size, self.dynamic, self.threads = size, dynamic, geometry.threads
        self.stride = max(STRIDE, -(-size // STRIDE) * STRIDE)
        self.bytes = np.full((geometry.blocks, self.stride), POISON, np.uint8)
        self.blocks = geometry.blocks
        self.shadow = Shadow(geometry, self.stride) if checks == "full" else None
        self._views: dict[tuple[Any, int], np.ndarray] = {}

    def view(self, dtype: np.dtype[Any], count: int = 1) -> np.ndarray:
        """All windows, one after another, as elements or rows of `count` elements."""
        view = self._views.get((dtype, count))
        if view is None:
            view = self.bytes.reshape(-1).view(dtype)
            view = self._views[dtype, count] = view if count == 1 else view.reshape(-1, count)
        return view

    def locate(self, group: Group, offset: Any, size: int, write: bool) -> Any:
        """Byte positions in the windows laid end to end, after the checks of bounds and alignment."""
        if offset.__class__ is np.ndarray:
            low, high = np.minimum.reduce(offset), np.maximum.reduce(offset)
            odd = np.bitwise_or.reduce(offset) & (size - 1)
        else:
            low = high = offset
            odd = offset & (size - 1)
        if low < 0 or high + size > self.size:
            self._outside(group, offset, size, write)
        if odd:
            bad = np.broadcast_to(offset & (size - 1), (group.n,)) != 0
            at = np.broadcast_to(offset, (group.n,))[bad][0]
            verb = "write" if write else "read"
            group.fail("misaligned", f"{verb} of {size} bytes of shared memory at offset {at}, no multiple of {size}", bad)
        return offset + group.lanes.shared_base(self.stride) if self.blocks > 1 else offset

    def _outside(self, group: Group, offset: Any, size: int, write: bool) -> None:
        offset = np.broadcast_to(offset, (group.n,))
        bad = (offset < 0) | (offset + size > self.size)
        verb = "write" if write else "read"
        detail = f" ({self.dynamic} of them dynamic)" if self.dynamic else ""
        text = f"{verb} of {size} bytes at offset {offset[bad][0]} of shared memory, which has {self.size} bytes{detail}"
        group.fail("out of bounds", text, bad)

    def synchronise(self, blocks: Any) -> None:
        """A barrier: accesses before and after it are ordered, in these blocks (None: in all)."""
        if self.shadow is not None:
            self.shadow.synchronise(blocks)

    def synchronise_warps(self, group: Group) -> None:
        """bar.warp.sync: accesses are ordered among the lanes of each warp of the group."""
        if self.shadow is not None:
            self.shadow.synchronise_warps(group.warp)
