"""Operands of matrix products in shared memory: where the bytes lie that a descriptor of wgmma or tcgen05 stands for.

A descriptor holds the start (bits 0 to 13), two byte offsets between repeating patterns, leading (16 to 29) and stride (32
to 45), all in units of 16 bytes, a base offset (49 to 51), and the swizzle, in its highest bits (PTX ISA, "Matrix
descriptor").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.arithmetic.matrix_elements import STORAGE
from kernelmux.emulator.ops.proxy import require_all_visible
from kernelmux.emulator.tma.swizzle import swizzled

Array = NDArray[Any]
UNIT = 16  # bytes that every layout keeps together
START = 0x3FFF  # the bits of a descriptor in which those of one layout differ
_SWIZZLES = (0, 128, 64, 32)  # by the two highest bits


@dataclass(frozen=True)
class SharedOperand:
    """A matrix `[rows, k]` of an instruction (wgmma, tcgen05.mma); transposed: MN-major, otherwise K-major."""

    instruction: str
    rows: int
    k: int
    kind: str
    transposed: bool

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return np.dtype(STORAGE[self.kind]).itemsize

    def units(self, group: Any, descriptors: Array, lanes: Any) -> Array:
        """Checked places in shared memory of the 16-byte units of matrices whose descriptors differ in their start alone.

        `[descriptors, rows, k * size / 16]`, or `[descriptors, k, rows * size / 16]` where transposed. lanes: the position
        in the group that each descriptor belongs to.
        """
        layout = int(descriptors[0])
        if layout >> 49 & 7:
            group.fail("unsupported", f"{self.instruction} descriptor with a base offset")
        mode, leading, stride = _SWIZZLES[layout >> 62], (layout >> 16 & START) << 4, (layout >> 32 & START) << 4
        start = (descriptors.astype(np.int64) & START) << 4
        lines, line = (self.k, self.rows) if self.transposed else (self.rows, self.k)
        pattern = _units(lines, line * self.size // UNIT, self.transposed, mode, leading, stride)
        units: Array = swizzled(start[:, None, None] + pattern, mode)
        legal = group.run.shared.size
        outside = (units.max(axis=(1, 2)) + UNIT > legal).nonzero()[0]
        if len(outside):
            reached = units[outside[0]].max() + UNIT
            message = f"{self.instruction} operand reaches byte {reached} of shared memory, which has {legal}"
            group.fail("out of bounds", message, [int(lanes[outside[0]])])
        return units

    def matrices(self, contents: Array) -> Array:
        """Bits `[.., rows, k]` from the contents of the units."""
        bits = contents.view(STORAGE[self.kind])
        if self.transposed:  # [.., k, rows]
            return bits.reshape(len(contents), self.k, self.rows).swapaxes(1, 2)
        return bits.reshape(len(contents), self.rows, self.k)


def require_units_visible(group: Any, blocks: Array, units: Array, what: str, positions: Array) -> None:
    """Fails unless units `[operands, .., ..]` are written, and visible to products; for each its block and who asks."""
    granule = min(UNIT, 1 << group.run.shared.shadow.shift)
    require_all_visible(group, blocks, units[..., None] + np.arange(0, UNIT, granule), what, positions)


@lru_cache(maxsize=256)
def _units(lines: int, count: int, transposed: bool, mode: int, leading: int, stride: int) -> Array:
    """Offsets `[lines, count]` of the 16-byte units of an operand from its start, before the swizzle."""
    line, unit = np.arange(lines)[:, None], np.arange(count)[None, :]
    if not transposed and mode == 0:
        return line // 8 * stride + line % 8 * UNIT + unit * leading
    if not transposed:
        return line // 8 * stride + line % 8 * mode + unit * UNIT
    if mode == 0:
        return line % 8 * UNIT + unit * stride + line // 8 * leading
    per_line = mode // UNIT
    return unit % per_line * UNIT + unit // per_line * leading + line % 8 * mode + line // 8 * stride
