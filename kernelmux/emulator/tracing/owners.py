"""Which block writes which element of an array, and which of them the drawn warp writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.tracing.warp_requests import NO_LANE

Array = NDArray[Any]
NOT_WRITTEN = -1  # in place of the number of a block
LARGEST = 1 << 26  # bytes of an array whose owners are noted


@dataclass(frozen=True)
class ArrayArgument:
    """An array that a launch was given: its emulated address, and its shape, strides (elements) and element size."""

    name: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int

    @property
    def extent(self) -> int:
        """Elements from the first to the last."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))


def array_arguments(arguments: Any) -> dict[str, ArrayArgument]:
    """The arrays among the arguments of a launch (an `ArgumentList` that has been placed), by name."""
    arrays = {}
    for name, value in zip(arguments.names, arguments.args, strict=True):
        tensor = getattr(value, "tensor", value)
        if name in arguments.addresses and hasattr(tensor, "shape"):
            size, strides = _layout(tensor)
            address = arguments.addresses[name]
            arrays[name] = ArrayArgument(name, address, tuple(tensor.shape), strides, size)
    return arrays


def _layout(tensor: Any) -> tuple[int, tuple[int, ...]]:
    if isinstance(tensor, np.ndarray):
        return tensor.itemsize, tuple(s // tensor.itemsize for s in tensor.strides)
    return int(tensor.element_size()), tuple(tensor.stride())


class Owners:
    """The last writer of every element of one array: block by its linear number, and whether the drawn warp wrote."""

    def __init__(self, array: ArrayArgument) -> None:
        self.array = array
        self.known = 0 < array.extent * array.size <= LARGEST and min((*array.strides, 0)) >= 0
        self.block = np.full(array.extent if self.known else 0, NOT_WRITTEN, np.int64)
        self.drawn = np.zeros(len(self.block), bool)

    def write(self, addresses: Array, block: Array, drawn: Array, size: int) -> None:
        """Rows of 32 addresses, -1 for no lane; the block of each row, and whether it is the drawn warp."""
        if not self.known:
            return
        row, lane = np.nonzero(addresses != NO_LANE)
        first = (addresses[row, lane] - self.array.address) // self.array.size
        for i in range(max(1, size // self.array.size)):
            inside = (first + i >= 0) & (first + i < len(self.block))
            place = (first + i)[inside]
            self.block[place] = block[row[inside]]
            self.drawn[place] |= drawn[row[inside]]

    def write_bytes(self, address: int, count: int, block: int, drawn: bool) -> None:
        """`count` bytes from `address` on, by one block."""
        if self.known:
            first, size = address - self.array.address, self.array.size
            place = slice(max(0, first // size), max(0, (first + count) // size))
            self.block[place] = block
            self.drawn[place] |= drawn

    def table(self, values: Array) -> Array:
        """`values` (`block` or `drawn`) in the shape of the array, leading dimensions folded to two."""
        array = self.array
        strides = tuple(s * values.itemsize for s in array.strides)
        shaped = np.lib.stride_tricks.as_strided(values, array.shape, strides, writeable=False)
        return shaped.reshape(-1, array.shape[-1] if array.shape else 1)
