"""Tensor maps: what `cuTensorMapEncodeTiled` makes for TMA copies, here in an encoding of our own.

A host object (`TensorMap`) is passed to a kernel by value; the copy instructions find its 128 bytes in memory and
decode them (`TileMap`). Sizes on the host are outermost first, like a tensor's shape; in the encoding innermost first,
like the coordinates of the instructions.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.swizzle import MODES

Bytes = NDArray[np.uint8]
MAX_RANK = 5
FILLS = ("zero", "nan")
_MAGIC = b"kxtm"
# Magic; rank, element bytes, swizzle, fill; address; sizes; strides in bytes of all but the innermost; box.
_FORMAT = struct.Struct("<4sBBBBQ5Q4Q5H")


class TensorMap:
    """A strided tensor or numpy array, the box that one copy moves, and where the box's bytes go in shared memory.

    `box`, `shape` and `strides` (in elements) are outermost first; shape and strides are the tensor's own unless given.
    `swizzle` is 0, 32, 64 or 128 bytes, `fill` what elements outside the array read as. Raises ValueError for what the
    driver refuses (CUDA driver API, `cuTensorMapEncodeTiled`, interleave none).
    """

    def __init__(
        self,
        tensor: Any,
        box: Sequence[int],
        swizzle: int = 0,
        *,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        fill: str = "zero",
    ) -> None:
        self.tensor, self.box, self.swizzle, self.fill = tensor, tuple(box), swizzle, fill
        self.shape = tuple(tensor.shape if shape is None else shape)
        of_array = isinstance(tensor, np.ndarray)
        self.size: int = tensor.itemsize if of_array else tensor.element_size()
        own = (stride // self.size for stride in tensor.strides) if of_array else tensor.stride()
        self.strides = tuple(own if strides is None else strides)
        self.pointer: int = tensor.__array_interface__["data"][0] if of_array else tensor.data_ptr()
        for problem in self._problems():
            raise ValueError(f"tensor map of shape {self.shape}, strides {self.strides}, box {self.box}: {problem}")

    def _problems(self) -> list[str]:
        rank = len(self.shape)
        inner = self.box[-1] * self.size
        outer_strides = [stride * self.size for stride in self.strides[:-1]]
        rules = {
            "shape, strides and box must have one rank": rank == len(self.strides) == len(self.box),
            f"rank must be 1 to {MAX_RANK}": 1 <= rank <= MAX_RANK,
            "sizes must be 1 to 2**32": all(1 <= size <= 2**32 for size in self.shape),
            "box sizes must be 1 to 256": all(1 <= size <= 256 for size in self.box),
            "the innermost stride must be 1": self.strides[-1] == 1,
            "outer strides must be multiples of 16 bytes": all(0 <= s < 2**40 and s % 16 == 0 for s in outer_strides),
            f"the innermost box is {inner} bytes, expected a multiple of 16": inner % 16 == 0,
            f"swizzle {self.swizzle} is none of {MODES}": self.swizzle in MODES,
            f"the innermost box is {inner} bytes, more than the swizzle": not self.swizzle or inner <= self.swizzle,
            f"fill {self.fill!r} is none of {FILLS}": self.fill in FILLS,
            "the tensor must start at a multiple of 16 bytes": self.pointer % 16 == 0,
        }
        return [rule for rule, holds in rules.items() if not holds]

    def encode(self, address: int) -> bytes:
        """The 128 bytes that a kernel receives when the tensor lies at `address`."""
        padding = (1,) * (MAX_RANK - len(self.shape))
        head = (_MAGIC, len(self.shape), self.size, self.swizzle, FILLS.index(self.fill), address)
        strides = [stride * self.size for stride in self.strides[-2::-1]] if len(self.shape) > 1 else []
        strides += [0] * (MAX_RANK - 1 - len(strides))
        packed = _FORMAT.pack(*head, *self.shape[::-1], *padding, *strides, *self.box[::-1], *padding)
        return packed.ljust(128, b"\0")


@dataclass(frozen=True)
class TileMap:
    """A decoded tensor map; all tuples innermost first, strides in bytes."""

    size: int
    swizzle: int
    fill: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def tile_bytes(self) -> int:
        return int(np.prod(self.box)) * self.size

    @property
    def extent(self) -> int:
        """Bytes from the first to the last element of the array."""
        steps = zip(self.shape, self.strides, strict=True)
        return sum((size - 1) * stride for size, stride in steps) + self.size

    def inside(self, coordinates: Sequence[int]) -> list[tuple[int, int]]:
        """First and last + 1 index of the part of the box at `coordinates` that lies in the array, per dimension."""
        boxes = zip(coordinates, self.box, self.shape, strict=True)
        return [(max(0, c), max(0, c, min(size, c + box))) for c, box, size in boxes]

    def read(self, memory: Bytes, coordinates: Sequence[int]) -> Bytes:
        """The tile at `coordinates` as dense bytes; `memory` starts at the array and has `extent` bytes."""
        tile = self._blank()
        target, source = self._views(tile, memory, coordinates)
        target[...] = source
        return tile

    def rows(self, tile: Bytes, coordinates: Sequence[int]) -> list[tuple[int, Bytes]]:
        """Address and contents of the contiguous rows of a tile that lie in the array."""
        ranges = self.inside(coordinates)
        (low, high), outer = ranges[0], ranges[1:]
        if low >= high:
            return []
        dense = tile.reshape(*self.box[::-1], self.size)
        result = []
        for index in np.ndindex(*(stop - start for start, stop in outer)):
            places = [start + i for (start, _), i in zip(outer, index, strict=True)]
            offset = low * self.size + sum(p * s for p, s in zip(places, self.strides[1:], strict=True))
            inner = [p - c for p, c in zip(places, coordinates[1:], strict=True)]
            row = dense[tuple(inner[::-1])][low - coordinates[0] : high - coordinates[0]]
            result.append((self.address + offset, row.reshape(-1)))
        return result

    def _blank(self) -> Bytes:
        """A tile as if all of it were outside."""
        if self.fill == "zero":
            return np.zeros(self.tile_bytes, np.uint8)
        return np.full(self.tile_bytes, 0xFF, np.uint8)  # all ones is a NaN in every float format

    def _views(self, tile: Bytes, memory: Bytes, coordinates: Sequence[int]) -> tuple[Bytes, Bytes]:
        """What of the tile lies in the array, and the same part of the array: `[outermost, .., innermost, bytes]`."""
        ranges = self.inside(coordinates)
        cut = tuple(slice(a - c, b - c) for (a, b), c in zip(ranges, coordinates, strict=True))[::-1]
        target = tile.reshape(*self.box[::-1], self.size)[cut]
        start = sum(a * stride for (a, _), stride in zip(ranges, self.strides, strict=True))
        if target.size == 0:
            return target, target
        strides = (*self.strides[::-1], 1)
        return target, np.lib.stride_tricks.as_strided(memory[start:], target.shape, strides, writeable=False)


def decode(content: bytes) -> TileMap | None:
    """The tensor map in 128 bytes of memory, None if they hold something else."""
    magic, rank, size, swizzle, fill, address, *numbers = _FORMAT.unpack_from(content)
    if magic != _MAGIC:
        return None
    shape, strides, box = numbers[:5], (size, *numbers[5:9]), numbers[9:]
    return TileMap(size, swizzle, FILLS[fill], address, tuple(shape[:rank]), tuple(strides[:rank]), tuple(box[:rank]))


# Fields that `tensormap.replace` writes: format, and offset in the encoding.
_FIELDS = {
    "rank": ("<B", 4),
    "elemtype": ("<B", 5),
    "swizzle_mode": ("<B", 6),
    "fill_mode": ("<B", 7),
    "global_address": ("<Q", 8),
    "global_dim": ("<Q", 16),
    "global_stride": ("<Q", 56),
    "box_dim": ("<H", 88),
}
# Bytes of an element by PTX number: u8, u16, u32, s32, u64, s64, f16, f32, f32.ftz, f64, bf16, tf32, tf32.ftz.
_ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
_CONSTANTS = {"element_stride": 1, "interleave_layout": 0}


def replaced(content: bytes, field: str, index: int, value: int) -> bytes:
    """An encoding with one field changed, given as `tensormap.replace` gives it; ValueError for unknown values."""
    if field in _CONSTANTS:
        if value != _CONSTANTS[field]:
            raise ValueError(f"tensor maps with {field} {value} are not emulated")
        return content
    meanings = {"elemtype": _ELEMENT_BYTES, "swizzle_mode": MODES}.get(field)
    if meanings is not None and value >= len(meanings):
        raise ValueError(f"tensor maps with {field} {value} are not emulated")
    stored = meanings[value] if meanings is not None else value + (field == "rank")  # PTX counts the rank from 0
    form, offset = _FIELDS[field]
    changed = bytearray(content)
    changed[: len(_MAGIC)] = _MAGIC
    struct.pack_into(form, changed, offset + index * struct.calcsize(form), stored)
    return bytes(changed)
