"""Tensors in memory that two processes share: what travels is where each lies, what it holds is mapped.

A region is a file in memory that cannot shrink or grow, so that reading it never fails whatever the other side does. The
memory behind a tensor travels as a whole, with what lies around the tensor, and comes to the same address every time.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch

SEALED = hasattr(os, "memfd_create")
LEAST = 64  # bytes of a region: one of none cannot be mapped
LARGE, PART = 1 << 26, 1 << 20  # bytes: of a region that is looked at in parts, and of a part
RANK = 64  # axes of a tensor, at most
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


class MisplacedTensor(Exception):
    """A description of a tensor that does not fit the memory that it is about."""


class Region:
    """Bytes that both sides have. file: its descriptor; address: where they lie here."""

    kind = "cpu"

    def __init__(self, file: int, size: int) -> None:
        self.file, self.size = file, size
        self.map = mmap.mmap(file, max(size, LEAST))
        self.bytes = np.frombuffer(self.map, np.uint8)[:size]
        self.address: int = self.bytes.__array_interface__["data"][0]

    def close(self) -> None:
        """Give the descriptor back; the memory goes with the last tensor on it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def region(size: int) -> Region:
    """A region of so many bytes, of our own."""
    if not SEALED:
        with tempfile.TemporaryFile() as made:
            made.truncate(max(size, LEAST))
            return Region(os.dup(made.fileno()), size)
    file = os.memfd_create("kernelmux", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, max(size, LEAST))
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return Region(file, size)


def fill(to: np.ndarray, data: np.ndarray, fresh: bool = False, file: int | None = None) -> None:
    """Write bytes into shared memory. What was never touched of a large one stays without; fresh: it holds zeros.

    file: that of a region with these bytes, which tells what was ever written. To look at the rest would give it memory.
    """
    if data.size <= LARGE:
        to[:] = data
        return
    touched, written = _touched(data), np.full(-(-data.size // PART), not fresh and file is None)
    for first, last in () if fresh or file is None else _written(file, data.size):
        written[first // PART : -(-last // PART)] = True
    for i, begin in enumerate(range(0, data.size, PART)):
        part = slice(begin, begin + PART)
        if touched[i] or (written[i] and to[part].any()):
            to[part] = data[part]


def changed(made: Region, data: np.ndarray, begin: int = 0) -> Iterator[slice]:
    """The parts of these bytes of which a region, from `begin` on, holds something else."""
    now = made.bytes[begin:]
    if data.size <= LARGE:
        if not np.array_equal(now, data):
            yield slice(0, data.size)
        return
    for first, last in _written(made.file, made.size):
        for at in range(max(first - begin, 0), last - begin, PART):
            part = slice(at, min(at + PART, data.size))
            if not np.array_equal(now[part], data[part]):
                yield part


def _touched(data: np.ndarray) -> list[bool]:
    """Which parts of private memory were ever written or read: the others hold zeros. All, where that is not known."""
    parts = -(-data.size // PART)
    page = mmap.PAGESIZE
    begin = data.__array_interface__["data"][0]
    first, last = begin // page, (begin + data.size - 1) // page + 1
    try:
        with open("/proc/self/pagemap", "rb") as file:
            file.seek(8 * first)
            entries = np.frombuffer(file.read(8 * (last - first)), np.uint64)
    except OSError:
        return [True] * parts
    there = (entries >> np.uint64(62)) != 0  # present, or swapped
    if there.size != last - first:
        return [True] * parts
    offset = begin - first * page
    edges = [min((offset + i * PART) // page, there.size) for i in range(parts + 1)]
    return [bool(there[a : b + 1].any()) for a, b in pairwise(edges)]


def read(file: int, begin: int, size: int) -> np.ndarray:
    """A copy of bytes of a file of the other side's; MisplacedTensor if it has fewer. It is not mapped."""
    end = begin + size
    try:
        if os.fstat(file).st_size < end:
            raise MisplacedTensor(f"expected {end} bytes of memory, got {os.fstat(file).st_size}")
        found = np.zeros(size, np.uint8)
        view = memoryview(found)  # type: ignore[arg-type]
        for first, last in _written(file, end, begin):
            at = max(first, begin)
            while at < last:
                count = os.preadv(file, [view[at - begin : min(at + PART, last) - begin]], at)
                if count == 0:
                    raise MisplacedTensor(f"expected {end} bytes of memory, got {at}")
                at += count
        return found
    except OSError as error:
        raise MisplacedTensor(f"its memory cannot be read: {error}") from error


def _written(file: int, size: int, begin: int = 0) -> Iterator[tuple[int, int]]:
    """Beginnings and ends of what was ever written in a file up to `size`; all of it where the system does not tell."""
    if size - begin <= LARGE or not hasattr(os, "SEEK_DATA"):
        yield begin, size
        return
    end = begin
    while end < size:
        try:
            first = os.lseek(file, end, os.SEEK_DATA)
        except OSError:  # nothing more
            return
        end = min(os.lseek(file, first, os.SEEK_HOLE), size)
        if first < end:
            yield first // PART * PART, end


def whole(storage: torch.UntypedStorage) -> torch.Tensor:
    """All bytes of a memory as a tensor on it."""
    made = torch.empty(0, dtype=torch.uint8, device=storage.device)
    with torch.no_grad():
        return made.set_(storage, 0, (storage.nbytes(),), (1,))


def held(storage: torch.UntypedStorage) -> np.ndarray:
    """What lies in a memory: on a CPU itself, of a GPU a copy."""
    return whole(storage).cpu().numpy()


def storage_of(data: np.ndarray) -> torch.UntypedStorage:
    """The memory of an array as torch has it; it keeps the array alive."""
    if not data.size:
        return torch.empty(0, dtype=torch.uint8).untyped_storage()
    return torch.from_numpy(data).untyped_storage()


def described(x: torch.Tensor) -> dict[str, Any]:
    """How a tensor lies in its memory, as JSON."""
    return {
        "dtype": str(x.dtype).removeprefix("torch."),
        "shape": list(x.shape),
        "strides": list(x.stride()),
        "offset": x.storage_offset(),
    }


def tensor(storage: torch.UntypedStorage, told: dict[str, Any]) -> torch.Tensor:
    """The tensor of that description; MisplacedTensor if it does not lie in this memory."""
    try:
        dtype, shape, strides = DTYPES[told["dtype"]], told["shape"], told["strides"]
        offset = told["offset"]
        numbers = [*shape, *strides, offset]
        if len(shape) != len(strides) or len(shape) > RANK or not all(type(n) is int and n >= 0 for n in numbers):
            raise MisplacedTensor(f"a tensor of shape {shape}, strides {strides}, offset {offset}")
    except (KeyError, TypeError) as error:
        raise MisplacedTensor(f"a tensor described as {str(told)[:200]}") from error
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if math.prod(shape) and (last + 1) * dtype.itemsize > storage.nbytes():
        raise MisplacedTensor(
            f"shape {shape}, strides {strides}, offset {offset} of {told['dtype']} in {storage.nbytes()} bytes"
        )
    made = torch.empty(0, dtype=dtype, device=storage.device)
    with torch.no_grad():
        return made.set_(storage, offset, tuple(shape), tuple(strides))
