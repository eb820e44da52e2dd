"""Tensor maps: what `cuTensorMapEncodeTiled` and `Im2col` make for TMA copies, here in an encoding of our own.

A host object (`TensorMap`) is passed to a kernel by value; the copy instructions find its 128 bytes in memory and
decode them (`TileMap`). Sizes on the host are outermost first, like a tensor's shape; in the encoding innermost first,
like the coordinates of the instructions.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.tma import im2col
from kernelmux.emulator.tma.im2col import PixelBox
from kernelmux.emulator.tma.swizzle import MODES

Bytes = NDArray[np.uint8]
MAX_RANK = 5
FILLS = ("zero", "nan")
# Element types by their PTX number, and their bytes.
ELEMENTS = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz")
ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
_OF_DTYPE = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "int32": "s32",
    "int64": "s64",
}
_MAGIC = b"kxtm"
# Magic; rank - 1 as PTX has it (compilers leave out what is 0), element type, swizzle, fill; address; sizes; strides in
# bytes of all but the innermost; box.
_FORMAT = struct.Struct("<4sBBBBQ5Q4Q5H")
_PIXELS_AT = _FORMAT.size  # what an im2col map has behind them


class TensorMap:
    """A strided tensor or numpy array, the box that one copy moves, and where the box's bytes go in shared memory.

    `box`, `shape` and `strides` (in elements) are outermost first; shape and strides are the tensor's own unless given.
    `swizzle` is 0, 32, 64 or 128 bytes, `fill` what elements outside the array read as, `element` the type for
    reductions (`ELEMENTS`), that of the tensor unless given. Raises ValueError for what the driver refuses (CUDA driver
    API, `cuTensorMapEncodeTiled`, interleave none).
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
        element: str | None = None,
    ) -> None:
        self.tensor, self.box, self.swizzle, self.fill = tensor, tuple(box), swizzle, fill
        self.shape = tuple(tensor.shape if shape is None else shape)
        of_array = isinstance(tensor, np.ndarray)
        self.size: int = tensor.itemsize if of_array else tensor.element_size()
        self.element = element or _element(str(tensor.dtype).removeprefix("torch."), self.size)
        own = (stride // self.size for stride in tensor.strides) if of_array else tensor.stride()
        self.strides = tuple(own if strides is None else strides)
        self.pointer: int = tensor.__array_interface__["data"][0] if of_array else tensor.data_ptr()
        for problem in self._problems():
            raise ValueError(f"tensor map of shape {self.shape}, strides {self.strides}, box {self.box}: {problem}")

    pixels: PixelBox | None = None  # of an im2col map

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
            f"element {self.element!r} of {self.size} bytes is none of {ELEMENTS}": (self.element, self.size)
            in zip(ELEMENTS, ELEMENT_BYTES, strict=True),
            "the tensor must start at a multiple of 16 bytes": self.pointer % 16 == 0,
        }
        if self.pixels is not None:
            rules = self.pixels.problems(rank) | rules
        return [rule for rule, holds in rules.items() if not holds]

    def encode(self, address: int) -> bytes:
        """The 128 bytes that a kernel receives when the tensor lies at `address`."""
        padding = (1,) * (MAX_RANK - len(self.shape))
        kind = ELEMENTS.index(self.element)
        head = (_MAGIC, len(self.shape) - 1, kind, self.swizzle, FILLS.index(self.fill), address)
        strides = [stride * self.size for stride in self.strides[-2::-1]] if len(self.shape) > 1 else []
        strides += [0] * (MAX_RANK - 1 - len(strides))
        packed = _FORMAT.pack(*head, *self.shape[::-1], *padding, *strides, *self.box[::-1], *padding)
        return (packed + (self.pixels.encode() if self.pixels else b"")).ljust(128, b"\0")


class Im2colMap(TensorMap):
    """A tensor [N, W, C], [N, H, W, C] or [N, D, H, W, C], and the pixels that one copy moves (see `im2col`).

    `lower`, `upper` and `steps` are outermost first, like the shape; a copy moves `pixels` pixels of `channels` each.
    Raises ValueError for what the driver refuses (`cuTensorMapEncodeIm2col`, interleave none).
    """

    def __init__(
        self,
        tensor: Any,
        lower: Sequence[int],
        upper: Sequence[int],
        channels: int,
        pixels: int,
        swizzle: int = 0,
        *,
        steps: Sequence[int] | None = None,
        fill: str = "zero",
        element: str | None = None,
    ) -> None:
        steps = (1,) * len(lower) if steps is None else steps
        self.pixels = PixelBox(pixels, channels, tuple(lower)[::-1], tuple(upper)[::-1], tuple(steps)[::-1])
        box = (1,) * (len(tensor.shape) - 1) + (channels,)
        super().__init__(tensor, box, swizzle, fill=fill, element=element)


def _element(dtype: str, size: int) -> str:
    """The element type of a tensor's dtype: unsigned integers for what the driver has no name for."""
    return _OF_DTYPE.get(dtype, f"u{8 * size}")


@dataclass(frozen=True)
class TileMap:
    """A decoded tensor map; all tuples innermost first, strides in bytes."""

    element: str
    swizzle: int
    fill: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    pixels: PixelBox | None = None

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[ELEMENTS.index(self.element)]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def tile_bytes(self) -> int:
        return (int(np.prod(self.box)) if self.pixels is None else self.pixels.count * self.pixels.channels) * self.size

    @property
    def line_bytes(self) -> int:
        """Bytes of the innermost axis of a tile."""
        return (self.box[0] if self.pixels is None else self.pixels.channels) * self.size

    @property
    def extent(self) -> int:
        """Bytes from the first to the last element of the array."""
        steps = zip(self.shape, self.strides, strict=True)
        return sum((size - 1) * stride for size, stride in steps) + self.size

    def inside(self, coordinates: Sequence[int]) -> list[tuple[int, int]]:
        """First and last + 1 index of the part of the box at `coordinates` that lies in the array, per dimension."""
        boxes = zip(coordinates, self.box, self.shape, strict=True)
        return [(max(0, c), max(0, c, min(size, c + box))) for c, box, size in boxes]

    def read(self, memory: Bytes, coordinates: Sequence[int], offsets: Sequence[int] = ()) -> Bytes:
        """The tile at `coordinates` as dense bytes; `memory` starts at the array and has `extent` bytes.

        offsets: of an im2col copy, the element of the filter.
        """
        tile = self._blank()
        if self.pixels is not None:
            for place, where, length in self._columns(coordinates, offsets):
                tile[place : place + length] = memory[where : where + length]
            return tile
        target, source = self._views(tile, memory, coordinates)
        target[...] = source
        return _rounded(tile) if self.element.startswith("tf32") else tile

    def rows(self, tile: Bytes, coordinates: Sequence[int]) -> list[tuple[int, Bytes]]:
        """Address and contents of the contiguous rows of a tile that lie in the array."""
        if self.pixels is not None:
            columns = self._columns(coordinates, (0,) * (self.rank - 2))
            return [(self.address + where, tile[place : place + length]) for place, where, length in columns]
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

    def _columns(self, coordinates: Sequence[int], offsets: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Of each pixel in the tensor: where its channels lie in the tile and in the array, and their bytes."""
        assert self.pixels is not None
        points, inside = self.pixels.places(self.shape, coordinates, offsets)
        low, high = max(0, coordinates[0]), min(self.shape[0], coordinates[0] + self.pixels.channels)
        for i in np.flatnonzero(inside).tolist() if low < high else ():
            where = int((points[i] * self.strides[1:]).sum()) + low * self.size
            place = (i * self.pixels.channels + low - coordinates[0]) * self.size
            yield place, where, (high - low) * self.size

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


def _rounded(tile: Bytes) -> Bytes:
    """float32 rounded to the 10 bits of tf32, to nearest even; infinities and NaN stay."""
    bits = tile.view(np.uint32)
    near = bits + (np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    finite = (bits & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
    return np.where(finite, near, bits).view(np.uint8)


def decode(content: bytes) -> TileMap | None:
    """The tensor map in 128 bytes of memory, None if they hold something else."""
    magic, rank, kind, swizzle, fill, address, *numbers = _FORMAT.unpack_from(content)
    if magic != _MAGIC:
        return None
    shape, strides, box = (
        tuple(n[: rank + 1]) for n in (numbers[:5], (ELEMENT_BYTES[kind], *numbers[5:9]), numbers[9:])
    )
    pixels = im2col.decode(content[_PIXELS_AT : _PIXELS_AT + im2col.SIZE], rank + 1)
    return TileMap(ELEMENTS[kind], swizzle, FILLS[fill], address, shape, strides, box, pixels)


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
_CONSTANTS = {"element_stride": 1, "interleave_layout": 0}


def replaced(content: bytes, field: str, index: int, value: int) -> bytes:
    """An encoding with one field changed, given as `tensormap.replace` gives it; ValueError for unknown values."""
    if field in _CONSTANTS:
        if value != _CONSTANTS[field]:
            raise ValueError(f"tensor maps with {field} {value} are not emulated")
        return content
    if value >= {"elemtype": len(ELEMENTS), "swizzle_mode": len(MODES), "fill_mode": len(FILLS)}.get(field, value + 1):
        raise ValueError(f"tensor maps with {field} {value} are not emulated")
    stored = MODES[value] if field == "swizzle_mode" else value
    form, offset = _FIELDS[field]
    changed = bytearray(content)
    changed[: len(_MAGIC)] = _MAGIC
    struct.pack_into(form, changed, offset + index * struct.calcsize(form), stored)
    return bytes(changed)
