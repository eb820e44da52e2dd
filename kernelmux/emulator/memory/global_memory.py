"""Global memory: the tensors of a launch and the variables of a module, at emulated addresses.

An address is `segment number << 40 | offset`. Each storage is one segment; inside it only the hulls of the arguments
(first to last element) may be touched. Offsets keep the real address modulo 256, so that alignment is that of the
real pointer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kernelmux.emulator.memory.access_records import LastAccess, Readers

if TYPE_CHECKING:
    from kernelmux.emulator.running.group import Group

SHIFT = 40
OFFSET = (1 << SHIFT) - 1
SHARED, LOCAL, PARAM = 0x7E, 0x7D, 0x7C  # segment numbers of the windows in the generic address space
FUNCTION = 0x7B  # segment number of the addresses of functions, where nothing can be read
FIRST_VARIABLE, FIRST_ARGUMENT = 0x100, 0x10000
ALIGNMENT = 256
WIDEST = 32  # bytes of the widest access of one lane


@dataclass(frozen=True)
class Hull:
    """The bytes of one argument inside its segment: lo to hi (exclusive). steps: length and byte stride of each axis."""

    lo: int
    hi: int
    name: str
    shape: str
    steps: tuple[tuple[int, int], ...] = ()

    def element(self, offset: int) -> str:
        """`name[i, j]` at a byte offset from lo, which may be outside; "" where no single element is meant."""
        index = [0] * len(self.steps)
        for stride, axis in sorted(((s, i) for i, (n, s) in enumerate(self.steps) if n != 1), reverse=True):
            if stride <= 0:
                return ""
            index[axis], offset = divmod(offset, stride)
        return "" if offset or not index else f"{self.name}[{', '.join(map(str, index))}]"


class Segment:
    """One storage. data[0] is the byte at offset 0, a multiple of 256 both here and on the machine."""

    def __init__(self, number: int, data: np.ndarray, hulls: list[Hull]) -> None:
        self.number, self.data, self.hulls = number, data, hulls
        self.start = number << SHIFT
        low, high = min(h.lo for h in hulls), max(h.hi for h in hulls)
        self.skipped = low // WIDEST * WIDEST  # accesses are counted from here: mostly from the first legal byte
        self.margin, self.extent = low - self.skipped, high - self.skipped
        self.base = self.start + self.skipped
        self.solid = any(h.lo == low and h.hi == high for h in hulls)
        self._views: dict[tuple[Any, int], np.ndarray] = {}
        self.writers: LastAccess | None = None
        self.readers = Readers()

    def again(self) -> Segment:
        """The same bytes for another launch, which nothing has written or read yet; launches may run side by side."""
        return Segment(self.number, self.data, self.hulls)

    def view(self, dtype: np.dtype[Any], count: int = 1) -> np.ndarray:
        """The data from `base` on, as elements or as rows of `count` elements."""
        view = self._views.get((dtype, count))
        if view is None:
            size, data = dtype.itemsize * count, self.data[self.skipped :]
            whole = data[: len(data) // size * size].view(dtype)
            view = self._views[dtype, count] = whole if count == 1 else whole.reshape(-1, count)
        return view

    def nearest(self, offset: int) -> Hull:
        """The hull that an offset most likely belongs to."""
        return min(self.hulls, key=lambda h: max(h.lo - offset, offset - h.hi, 0))

    def outside(self, offsets: np.ndarray, size: int) -> np.ndarray:
        """Which accesses of `size` bytes do not lie inside one hull."""
        bad = np.ones(np.shape(offsets), bool)
        for hull in self.hulls:
            bad &= (offsets < hull.lo) | (offsets + size > hull.hi)
        return bad


class _Memory:
    """Bytes of this process, offered to numpy."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}


def machine_bytes(pointer: int, size: int) -> np.ndarray:
    """A view of the process's memory; nothing keeps it alive but the tensor it belongs to."""
    return np.asarray(_Memory(pointer, size))


class GlobalMemory:
    """The segments of a launch."""

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}

    def add(self, segment: Segment) -> None:
        self.segments[segment.number] = segment

    def locate(self, group: Group, address: Any, dtype: np.dtype[Any], count: int, write: bool) -> tuple[Segment, Any]:
        """The segment and the row index of every access, after the checks of bounds and alignment.

        Raises `Elsewhere` when the lanes address several segments.
        """
        size = dtype.itemsize * count
        scalar = address.__class__ is not np.ndarray
        segment = self.segments.get(int(address if scalar else address[0]) >> SHIFT)
        if segment is None:
            self._bad_pointer(group, address, size, write)
        offset = address - segment.base
        union = int(offset if scalar else np.bitwise_or.reduce(offset))  # not below the largest, odd if one is odd
        high = union if scalar or union + size <= segment.extent else int(np.maximum.reduce(offset))
        if (
            union < 0
            or high + size > segment.extent
            or not segment.solid
            or (segment.margin and np.min(offset) < segment.margin)
        ):
            self._check(group, segment, address, size, write)
        if union & (size - 1):
            self._misaligned(group, segment, offset + segment.skipped, size, write)
        return segment, offset >> (size.bit_length() - 1)

    def span(self, group: Group, address: int, size: int, write: bool, position: int = 0) -> np.ndarray:
        """`size` consecutive bytes as a view, after the check of bounds; position is the lane that asks."""
        segment = self.segments.get(address >> SHIFT)
        offset = address & OFFSET
        if segment is None:
            group.fail("bad pointer", f"{_verb(write)} of {size} bytes through {_pointer(address)}", [position])
        if segment.outside(np.asarray(offset), size).any():
            group.fail("out of bounds", _outside_text(segment, offset, size, write), [position])
        return segment.data[offset : offset + size]

    def _check(self, group: Group, segment: Segment, address: Any, size: int, write: bool) -> None:
        """The slow path: several segments, holes between hulls, or an error."""
        address = np.broadcast_to(address, (group.n,))
        number, offset = address >> SHIFT, address - segment.start
        other = number != segment.number
        if other.any():
            known = np.isin(number, list(self.segments))
            if not known.all():
                self._bad_pointer(group, np.where(known, segment.start, address), size, write, ~known)
            raise Elsewhere(number)
        bad = segment.outside(offset, size)
        if bad.any():
            where = int(np.flatnonzero(bad)[0])
            group.fail("out of bounds", _outside_text(segment, int(offset[where]), size, write), [where])

    def _bad_pointer(self, group: Group, address: Any, size: int, write: bool, bad: Any = None) -> NoReturn:
        where = 0 if bad is None else int(np.flatnonzero(bad)[0])
        value = int(address[where] if np.ndim(address) else address)
        neighbour = self.segments.get((value >> SHIFT) + 1)
        if neighbour is not None and value - neighbour.start > -(1 << SHIFT - 1):
            group.fail("out of bounds", _outside_text(neighbour, value - neighbour.start, size, write), [where])
        group.fail("bad pointer", f"{_verb(write)} of {size} bytes through {_pointer(value)}", [where])

    def _misaligned(self, group: Group, segment: Segment, offset: Any, size: int, write: bool) -> None:
        offset = np.broadcast_to(offset, (group.n,)) if np.ndim(offset) == 0 else offset
        where = int(np.flatnonzero(offset & (size - 1))[0])
        at = int(offset[where])
        hull = segment.nearest(at)
        place = f"offset {at - hull.lo} of {_described(hull)}"
        text = f"{_verb(write)} of {size} bytes at an address that is no multiple of {size}: {place}"
        base = hull.lo % size
        group.fail(
            "misaligned",
            text + (f", which itself begins {base} bytes past a multiple of {size}" if base else ""),
            [where],
        )


class Elsewhere(Exception):
    """The lanes of one access address several segments; number[i] is that of lane i."""

    def __init__(self, number: np.ndarray) -> None:
        super().__init__()
        self.number = number


def _verb(write: bool) -> str:
    return "write" if write else "read"


def _pointer(value: int) -> str:
    if 0 <= value < 1 << 16:
        return f"the null pointer (address {value})" if value else "the null pointer"
    return f"the address {value & (1 << 64) - 1:#x}, which belongs to no argument"


def _described(hull: Hull) -> str:
    return f"{hull.name} {hull.shape}".rstrip()


def _outside_text(segment: Segment, offset: int, size: int, write: bool) -> str:
    hull = segment.nearest(offset)
    text = f"{_verb(write)} of {size} bytes at byte offset {offset - hull.lo} of {_described(hull)}"
    text += f", which has {hull.hi - hull.lo} bytes"
    element = hull.element(offset - hull.lo)
    return f"{text}: {element}" if element else text
