"""Loads and stores of a chunk: sends each access to its memory, checks it, and moves the data with numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmux.emulator.analysis.flow import Step
from kernelmux.emulator.errors import EmulatorError, Triple
from kernelmux.emulator.memory import redundant_stores
from kernelmux.emulator.memory.global_memory import LOCAL, OFFSET, PARAM, SHARED, SHIFT, Elsewhere, GlobalMemory
from kernelmux.emulator.memory.global_races import GlobalWriters
from kernelmux.emulator.memory.shared_address import Spot, total
from kernelmux.emulator.memory.shared_memory import SharedWindows
from kernelmux.emulator.ptx.parser import Location

if TYPE_CHECKING:
    from kernelmux.emulator.running.group import Group

TOOLKITS = ("/nvidia/", "/cuda/", "/triton/language/")  # in the paths of headers and libraries that are not the user's
WINDOWS = {SHARED: "shared", LOCAL: "local", PARAM: "param"}


@dataclass(slots=True)
class Target:
    """Where an access goes: rows of `view`, in shared memory or in a segment of global memory."""

    view: np.ndarray
    rows: Any
    shared: Spot | None = None
    segment: Any = None


class LocalMemory:
    """Stack frames of the lanes; one row of bytes per lane. In full mode `written` says which bytes ever were."""

    def __init__(self, lanes: int, full: bool) -> None:
        self.bytes = np.zeros((lanes, 0), np.uint8)
        self.written = np.zeros((lanes, 0), bool) if full else None

    def reserve(self, size: int) -> None:
        """Makes rows of at least `size` bytes."""
        width = -(-size // 16) * 16
        if width > self.bytes.shape[1]:
            grown = np.full((len(self.bytes), width), 0xFF, np.uint8)
            grown[:, : self.bytes.shape[1]] = self.bytes
            self.bytes = grown
            if self.written is not None:
                self.written = np.pad(self.written, ((0, 0), (0, width - self.written.shape[1])))

    def unwritten(self, rows: np.ndarray, size: int, write: bool) -> Any:
        """Which accesses of `size` bytes at rows (in units of size) read only bytes that were never written."""
        assert self.written is not None
        written = self.written.reshape(-1, size)
        if write:
            written[rows] = True
            return np.False_
        return ~written[rows].any(axis=1)


class ChunkMemory:
    """The memories of a chunk."""

    def __init__(
        self,
        memory: GlobalMemory,
        shared: SharedWindows,
        parameters: np.ndarray,
        lanes: int,
        kernel: str,
        files: dict[int, str],
    ) -> None:
        self.memory, self.shared, self.parameters = memory, shared, parameters
        self.local = LocalMemory(lanes, shared.shadow is not None)
        self.kernel, self.files = kernel, files
        self.writers: GlobalWriters | None = None  # set in full mode

    # ---- the two entries

    def load(
        self,
        group: Group,
        space: str,
        address: Any,
        dtype: np.dtype[Any],
        count: int,
        mask: Any,
        wanted: tuple[bool, ...] | None = None,
        strong: bool = False,
    ) -> Any:
        """See `Group.load`; wanted: the elements of a row that are used (all); strong: volatile and the like."""
        if mask is not None and (mask.__class__ is not np.ndarray or not mask.all()):
            return self._load_some(group, space, total(address), dtype, count, mask, wanted, strong)
        try:
            if space == "generic":
                space, address = self._window(address)
            if space == "shared":
                return self.shared.load(group, address, dtype, count, wanted)
            place = self._locate(group, space, address, dtype, count, write=False)
        except Elsewhere as elsewhere:
            return self._load_parts(group, space, address, dtype, count, elsewhere.number, strong)
        if self.writers is not None and place.segment is not None and not strong:
            self.writers.read(group, place.segment, place.rows, dtype.itemsize * count)
        return place.view.take(place.rows, axis=0) if place.rows.__class__ is np.ndarray else place.view[place.rows]

    def store(self, group: Group, space: str, address: Any, values: Any, mask: Any) -> None:
        """See `Group.store`."""
        if mask is not None and (mask.__class__ is not np.ndarray or not mask.all()):
            self._store_some(group, space, total(address), values, mask)
            return
        count = values.shape[1] if np.ndim(values) == 2 else 1
        dtype = values.dtype
        if address.__class__ is tuple and address[0].__class__ is not np.ndarray:
            address = total(address)
        if np.ndim(values) and address.__class__ is not tuple and not np.ndim(address):
            address = group.full(address)
        try:
            place = self._locate(group, space, address, dtype, count, write=True)
        except Elsewhere as elsewhere:
            for number in np.unique(elsewhere.number):
                self._store_some(group, space, address, values, elsewhere.number == number)
            return
        self._put(group, place, values, dtype.itemsize * count)

    def locate(self, group: Group, space: str, address: Any, dtype: np.dtype[Any]) -> Target:
        """Checked place of one element per lane, for atomics; raises `Elsewhere` for addresses in several segments."""
        return self._locate(group, space, address, dtype, 1, write=True)

    def fence(self, group: Group) -> None:
        """What the blocks of the group wrote to global memory so far may be seen by other blocks."""
        if self.writers is not None:
            self.writers.fence(group)

    # ---- places

    def _locate(self, group: Group, space: str, address: Any, dtype: np.dtype[Any], count: int, write: bool) -> Target:
        if space == "generic":
            space, address = self._window(address)
        if space in ("global", "const"):
            segment, rows = self.memory.locate(group, address, dtype, count, write)
            return Target(segment.view(dtype, count), rows, segment=segment)
        if space == "shared":
            return self._shared(group, address, dtype, count, write)
        if space == "local":
            return self._local(group, address, dtype, count, write)
        return self._parameter(group, address, dtype, count)

    def _window(self, address: Any) -> tuple[str, Any]:
        number = address >> SHIFT
        first = number[0] if number.__class__ is np.ndarray else number
        if number.__class__ is np.ndarray and (number != first).any():
            raise Elsewhere(number)
        space = WINDOWS.get(int(first))
        return ("global", address) if space is None else (space, address & OFFSET)

    def _shared(self, group: Group, address: Any, dtype: np.dtype[Any], count: int, write: bool) -> Target:
        spot = self.shared.spot(group, address, dtype.itemsize * count, write)
        return Target(self.shared.view(dtype, count)[spot.start :], spot.rows, shared=spot)

    def _local(self, group: Group, address: Any, dtype: np.dtype[Any], count: int, write: bool) -> Target:
        size = dtype.itemsize * count
        width = self.local.bytes.shape[1]
        offset = np.broadcast_to(address, (group.n,))
        bad = (offset < 0) | (offset + size > width)
        if bad.any():
            verb = "write" if write else "read"
            group.fail(
                "out of bounds",
                f"{verb} of {size} bytes at offset {offset[bad][0]} of the {width} bytes of local memory",
                bad,
            )
        if (offset % size).any():
            group.fail(
                "misaligned",
                f"access of {size} bytes of local memory at an offset that is no multiple of {size}",
                offset % size != 0,
            )
        view = self.local.bytes.reshape(-1).view(dtype)
        rows = (group.index * width + offset) // size
        if self.local.written is not None and (bad := self.local.unwritten(rows, size, write)).any():
            group.fail("uninitialised", f"read of local memory at offset {offset[bad][0]} before any write", bad)
        return Target(view if count == 1 else view.reshape(-1, count), rows)

    def _parameter(self, group: Group, address: Any, dtype: np.dtype[Any], count: int) -> Target:
        size = dtype.itemsize * count
        bad = (address < 0) | (address + size > len(self.parameters)) | (address % size != 0)
        if bad if np.ndim(bad) == 0 else bad.any():
            end = len(self.parameters)
            group.fail("out of bounds", f"read of {size} bytes of the kernel's parameters, which have {end}", bad)
        whole = self.parameters[: len(self.parameters) // size * size].view(dtype)
        return Target(whole if count == 1 else whole.reshape(-1, count), address // size)

    # ---- some lanes only

    def _load_some(
        self,
        group: Group,
        space: str,
        address: Any,
        dtype: np.dtype[Any],
        count: int,
        mask: Any,
        wanted: Any,
        strong: bool,
    ) -> Any:
        shape = (group.n,) if count == 1 else (group.n, count)
        result = np.zeros(shape, dtype)
        where = np.flatnonzero(np.broadcast_to(mask, (group.n,)))
        if len(where):
            part = group.view_of(where)
            result[where] = self.load(part, space, _some(address, where), dtype, count, None, wanted, strong)
        return result

    def _load_parts(
        self, group: Group, space: str, address: Any, dtype: np.dtype[Any], count: int, number: np.ndarray, strong: bool
    ) -> Any:
        result = np.zeros((group.n,) if count == 1 else (group.n, count), dtype)
        for one in np.unique(number):
            where = np.flatnonzero(number == one)
            part = group.view_of(where)
            result[where] = self.load(part, space, address[where], dtype, count, None, strong=strong)
        return result

    def _store_some(self, group: Group, space: str, address: Any, values: Any, mask: Any) -> None:
        where = np.flatnonzero(np.broadcast_to(mask, (group.n,)))
        if len(where):
            some = values[where] if np.ndim(values) else values
            self.store(group.view_of(where), space, _some(address, where), some, None)

    # ---- data

    def _put(self, group: Group, place: Target, values: Any, size: int) -> None:
        view, rows = place.view, place.rows
        if place.shared is not None and self.shared.shadow is not None:
            self.shared.shadow.write(group, place.shared, _changer(view, rows, values))
        elif place.segment is not None and self.writers is not None:
            self.writers.write(group, place.segment, rows, size, _changer(view, rows, values))
        view[rows] = values
        if self.shared.shadow is not None or self.writers is not None:
            self._require_agreement(group, place, values)

    def _require_agreement(self, group: Group, place: Target, values: Any) -> None:
        """Fails if two lanes have just written different values to one place, so that one does not find its own."""
        if place.rows.__class__ is not np.ndarray and np.ndim(values) == 0:
            return
        different = _changes(place.view, place.rows, values)
        if different.any():
            different = np.broadcast_to(different, (group.n,))
            if redundant_stores.allowed(group, place.view, place.rows, values, different, place.shared is not None):
                redundant_stores.warn(group)
                return
            kind = "shared" if place.shared is not None else "global"
            first = int(np.argmax(different))
            kept = place.view[place.rows[first] if np.ndim(place.rows) else place.rows]
            text = f"two threads write different values to one place of {kind} memory, where {kept} stays"
            group.fail("race", text, [first])

    def raw(self, group: Group, address: int, size: int, position: int) -> bytes:
        """`size` bytes at one generic address, for printf, which also reads the padding between its arguments."""
        written, self.local.written = self.local.written, None
        part, where = group.view_of(np.full(size, position)), np.arange(size) + address
        values = self.load(part, "generic", where, np.dtype(np.uint8), 1, None)
        self.local.written = written
        return bytes(values)

    def text(self, group: Group, pointer: np.ndarray) -> str:
        """The C string at an address given as parameter bytes (n, 8); that of the first lane."""
        address = int(np.ascontiguousarray(pointer[:1]).view(np.int64)[0, 0])
        segment = self.memory.segments.get(address >> SHIFT)
        if segment is None:
            return "?"
        return bytes(segment.data[address & OFFSET :]).split(b"\0", 1)[0].decode(errors="replace")

    # ---- errors

    def error(
        self,
        kind: str,
        message: str,
        function: str,
        step: Step | None,
        block: Triple | None,
        thread: Triple | None,
        values: dict[str, str] | None = None,
        earlier: Step | None = None,
    ) -> EmulatorError:
        """The public error for a fault at a step; earlier: the step of the access that a race is with."""
        instruction = step.instruction if step is not None else None
        (file, line), *inlined = self._places(instruction.location if instruction is not None else None)
        before = self._places(earlier.instruction.location if earlier is not None else None)[0]
        name = self.kernel if function == self.kernel else f"{self.kernel} (in {function})"
        return EmulatorError(
            message,
            kind=kind,
            kernel=name,
            file=file,
            line=line,
            inlined=tuple(inlined),
            block=block,
            thread=thread,
            instruction=instruction.text if instruction is not None else None,
            values=values,
            earlier=before if before[0] else None,
        )

    def _places(self, location: Location | None) -> list[tuple[Any, Any]]:
        """Source places, the one to name first: not a line of a toolkit's header if that was inlined somewhere."""
        if location is None:
            return [(None, None)]
        places = [
            (self.files.get(file, "?"), line) for file, line in ((location.file, location.line), *location.inlined)
        ]
        if len(places) > 1 and any(word in places[0][0] for word in TOOLKITS):
            return places[1:]
        return places


def _some(address: Any, where: np.ndarray) -> Any:
    return address[where] if address.__class__ is np.ndarray else address


def _bits(values: Any) -> Any:
    return values.view(f"u{values.dtype.itemsize}") if values.dtype.kind == "f" else values


def _changes(view: np.ndarray, rows: Any, values: Any) -> np.ndarray:
    """Which lanes' values differ, in their bits, from what is at their place; all NaN are the same."""
    now, values = _bits(view[rows]), _bits(values)
    different = np.asarray(now != values)
    if different.any():
        different = different & ~_both_nan(now, values)
    return np.asarray(different.any(axis=-1)) if view.ndim == 2 else different


def _both_nan(a: Any, b: Any) -> Any:
    """Where two words hold NaN as floats of their size, or as pairs of halves: a GPU has one NaN, numpy several."""
    size = a.dtype.itemsize
    if size == 1:
        return np.False_
    infinity = {2: 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}[size]
    mask = a.dtype.type((1 << 8 * size - 1) - 1)
    whole = ((a & mask) > infinity) & ((b & mask) > infinity)
    if size != 4:
        return whole
    special = ((a & mask) >= infinity) & ((b & mask) >= infinity)
    halves = [(x.astype(np.uint32) >> np.uint32(shift)).astype(np.uint16) for x in (a, b) for shift in (0, 16)]
    low, high = (halves[0], halves[2]), (halves[1], halves[3])
    return whole | (~special & _same_half(*low) & _same_half(*high))


def _same_half(a: Any, b: Any) -> Any:
    return (a == b) | _both_nan(a, b)


def _changer(view: np.ndarray, rows: Any, values: Any) -> Callable[[], np.ndarray]:
    return lambda: _changes(view, rows, values)
