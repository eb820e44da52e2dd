"""cp.async.bulk: TMA copies of tiles (`.tensor`) and of plain bytes, which one thread starts for all.

Loads report to an mbarrier and arrive when somebody waits for it; stores read shared memory when their thread waits
for the bulk group. In full mode it is an error when a store's source changes before that, or nobody waits for a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.cluster import ranks, split
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address, operation, registers
from kernelmux.emulator.ops.mbarrier import WORD, Barriers, Flight
from kernelmux.emulator.ops.proxy import require_visible
from kernelmux.emulator.ops.unfinished import never_waited_for
from kernelmux.emulator.parser import Instruction, TensorAddress, Vector
from kernelmux.emulator.swizzle import swizzled
from kernelmux.emulator.tensor_map import TileMap, decode

Array = NDArray[Any]
TILE_ALIGNMENT = 128  # of a tile in shared memory, bytes
BULK_ALIGNMENT = 16  # of both ends and the size of a plain bulk copy, bytes


# --- places in shared memory ----------------------------------------------------------------------------------


def tensor_maps(group: Any, where: Any) -> list[TileMap]:
    """The tensor map of every lane, read like any memory: parameters, constants and global memory can hold one."""
    halves = [group.load("generic", where + offset, np.uint64, count=8) for offset in (0, 64)]
    contents = [row.tobytes() for row in np.broadcast_to(np.concatenate(halves, axis=-1), (group.n, 16))]
    known = {content: decode(content) for content in set(contents)}
    maps = [known[content] for content in contents]
    missing = np.array([tile is None for tile in maps])
    if missing.any():
        group.fail("bad pointer", f"no tensor map at address {int(group.full(where)[missing][0]):#x}", missing)
    return [tile for tile in maps if tile is not None]


def _tile_offsets(group: Any, i: int, start: int, tile: TileMap) -> Array:
    """Shared-memory offset of every byte of a tile, checked."""
    if start % TILE_ALIGNMENT:
        group.fail("misaligned", f"a TMA tile at shared offset {start} is not aligned to {TILE_ALIGNMENT} bytes", [i])
    _check_inside(group, i, start, tile.tile_bytes)
    offsets: Array = swizzled(start + np.arange(tile.tile_bytes), tile.swizzle)
    return offsets


def _check_inside(group: Any, i: int, start: int, size: int) -> None:
    legal = group.run.shared.size
    if start < 0 or start + size > legal:
        group.fail("out of bounds", f"bulk copy of {size} bytes at shared offset {start}, of {legal}", [i])


# --- loads: global to shared, reporting to an mbarrier --------------------------------------------------------


def _take_off(
    ins: Instruction, group: Any, i: int, to: tuple[int, Array], bar: tuple[int, int], content: Array
) -> None:
    """Start a load of `content` to the place (block, offsets); it reports to the mbarrier (block, offset)."""
    barriers, shared, (block, offsets) = Barriers.of(group), group.run.shared, to
    barrier = (bar[0], bar[1] // WORD)
    if bar[1] % WORD or not barriers.valid[barrier]:
        group.fail("asynchronous", f"there is no initialised mbarrier at shared offset {bar[1]}", [i])
    _clear(group, i, block, offsets)

    def land(waiter: Any) -> None:
        shared.bytes[block, offsets] = content
        if shared.shadow is not None:
            shared.shadow.written(block, offsets)
        place = (np.array([barrier[0]]), np.array([barrier[1]]))
        barriers.bytes[place] -= content.size
        barriers.complete(waiter, place)

    barriers.start(barrier, Flight(land, ins, int(group.index[i])))


def _clear(group: Any, i: int, block: int, offsets: Array) -> None:
    """Leaves nothing usable where a load will arrive; whoever still reads there races with the lane that started it."""
    shared = group.run.shared
    if block == group.block[i]:
        units = np.unique(offsets // BULK_ALIGNMENT * BULK_ALIGNMENT)
        group.view_of(np.full(len(units), i)).store("shared", units, np.full((len(units), 4), 0xFFFFFFFF, np.uint32))
    else:
        shared.bytes[block, offsets] = 0xFF
    if shared.shadow is not None:
        shared.shadow.forget(block, offsets)


def _places(group: Any, address_: Any) -> list[tuple[int, int]]:
    """Block and offset of every lane's shared-memory address."""
    block, offset = split(group, address_)
    return list(zip(block.tolist(), offset.tolist(), strict=True))


def _goals(group: Any, i: int, mask: int | None, block: int) -> list[int]:
    """The blocks that a load goes to: the one addressed (mask None), or those of the cluster whose bits are set."""
    if mask is None:
        return [block]
    size = group.run.geometry.cluster
    if mask <= 0 or mask >> size:
        group.fail("out of bounds", f"multicast to blocks {mask:#b} of a cluster of {size}", [i])
    first = int(group.block[i] - ranks(group)[i])
    return [first + rank for rank in range(size) if mask >> rank & 1]


def _refuse(ins: Instruction, *prefixes: str) -> None:
    refused = [m for m in ins.modifiers if m.startswith(prefixes)]
    if refused:
        raise Unsupported(f"{ins.opcode}: {', '.join(refused)} is not emulated")


@operation("cp.async.bulk.tensor")
def tensor_copy(ins: Instruction) -> Action:
    """Loads `[to], [map, {c0, ..}], [mbarrier]{, blocks}` and stores `[map, {c0, ..}], [from]` of tiles, 1-D to 5-D."""
    _refuse(ins, "cta_group", "im2col", "tile::")
    loads = isinstance(ins.operands[1], TensorAddress)
    tiled = ins.operands[1] if loads else ins.operands[0]
    if not isinstance(tiled, TensorAddress):
        raise Unsupported(ins.opcode)
    coordinates = registers(Vector(tiled.coordinates), np.int32)
    if not loads:
        inputs = (address(ins.operands[1]), (tiled.base, np.int64), *coordinates)
        return Action(partial(_store_tile, ins), inputs=inputs)
    mask = ((ins.operands[3], np.uint16),) if ins.has("multicast::cluster") else ()
    inputs = (address(ins.operands[0]), (tiled.base, np.int64), address(ins.operands[2]), *coordinates, *mask)
    return Action(partial(_load_tile, ins, len(coordinates)), inputs=inputs)


def _load_tile(ins: Instruction, rank: int, group: Any, to: Array, map_: Array, bar: Array, *rest: Any) -> None:
    maps, targets, barriers = tensor_maps(group, map_), _places(group, to), _places(group, bar)
    masks = group.full(rest[rank]).tolist() if len(rest) > rank else [None] * group.n
    for i, (at,) in enumerate(_per_lane(group, rest[:rank])):
        tile, (block, start) = maps[i], targets[i]
        _check_rank(group, i, tile, at)
        offsets = _tile_offsets(group, i, start, tile)
        memory = group.run.memory.span(group, tile.address, tile.extent, False, position=i)
        content = tile.read(memory, at)
        for goal in _goals(group, i, masks[i], block):
            barrier = (goal, barriers[i][1]) if masks[i] is not None else barriers[i]
            _take_off(ins, group, i, (goal, offsets), barrier, content)


def _per_lane(group: Any, coordinates: Sequence[Array], *addresses: Any) -> Any:
    """Plain numbers for each lane: addresses, and the coordinates as a tuple."""
    places = [group.full(c).tolist() for c in coordinates]
    return zip(*(group.full(a).tolist() for a in addresses), zip(*places, strict=True), strict=True)


def _check_rank(group: Any, i: int, tile: TileMap, at: Sequence[int]) -> None:
    if len(at) != tile.rank:
        message = f"a {len(at)}-D copy with the tensor map of a {tile.rank}-D array"
        group.fail("asynchronous", message, [i])


# --- stores: shared to global, in bulk groups -----------------------------------------------------------------


@dataclass
class Store:
    """One store under way: where it reads, what was there at the start (full mode), and how it writes."""

    ins: Instruction
    block: int
    offsets: Array
    seen: Array | None
    rows: Any  # content -> [(address, bytes)]

    def land(self, group: Any, i: int) -> None:
        shared = group.run.shared
        content = shared.bytes[self.block, self.offsets]
        if self.seen is not None and (content != self.seen).any():
            group.fail("asynchronous", "shared memory was overwritten before a bulk store had read it", [i])
        for where, row in self.rows(content):
            group.run.memory.span(group, where, len(row), True, position=i)[:] = row


@dataclass
class Book:
    """Bulk stores of one thread: not committed, and committed groups, oldest first."""

    open: list[Store] = field(default_factory=list)
    committed: list[list[Store]] = field(default_factory=list)


def _books(group: Any) -> dict[int, Book]:
    state = group.run.state
    if "bulk" not in state:
        state["bulk"] = {}
        group.run.on_finish.append(partial(_check_landed, group.run, state["bulk"]))
    books: dict[int, Book] = state["bulk"]
    return books


def _check_landed(run: Any, books: dict[int, Book]) -> None:
    for lane, book in books.items() if run.checks == "full" else ():
        for store in (*book.open, *(store for stores in book.committed for store in stores)):
            raise never_waited_for(run, store.ins, lane, "this store (cp.async.bulk.commit_group, wait_group)")


def _start_store(ins: Instruction, group: Any, i: int, offsets: Array, rows: Any) -> None:
    shared, block = group.run.shared, int(group.block[i])
    full = group.run.checks == "full"
    if full:
        require_visible(group, block, offsets, "a bulk store", position=i)
    seen = shared.bytes[block, offsets] if full else None
    _books(group).setdefault(int(group.index[i]), Book()).open.append(Store(ins, block, offsets, seen, rows))


def _store_tile(ins: Instruction, group: Any, source: Array, map_: Array, *coordinates: Array) -> None:
    maps = tensor_maps(group, map_)
    for i, (start, at) in enumerate(_per_lane(group, coordinates, source)):
        tile = maps[i]
        _check_rank(group, i, tile, at)
        offsets = _tile_offsets(group, i, start, tile)
        _start_store(ins, group, i, offsets, lambda content, tile=tile, at=at: tile.rows(content, at))


@operation("cp.async.bulk.commit_group")
def commit_group(ins: Instruction) -> Action:
    """`cp.async.bulk.commit_group`: the thread's stores since the last commit become a group.

    Threads that never stored keep no book: empty groups before a first store cannot change what a wait has to wait for.
    """

    def run(group: Any) -> None:
        for _, book in _books_of(group):
            book.committed.append(book.open)
            book.open = []

    return Action(run)


@operation("cp.async.bulk.wait_group")
def wait_group(ins: Instruction) -> Action:
    """`cp.async.bulk.wait_group{.read} N`: wait until at most N groups are under way; `.read` makes no difference."""
    allowed = ins.operands[0].integer  # type: ignore[union-attr]

    def run(group: Any) -> None:
        for i, book in _books_of(group):
            while len(book.committed) > allowed:
                for store in book.committed.pop(0):
                    store.land(group, i)

    return Action(run)


def _books_of(group: Any) -> list[tuple[int, Book]]:
    """Position and book of the lanes of the group that have one."""
    books = _books(group)
    if not books:
        return []
    here = np.flatnonzero(np.isin(group.index, list(books)))
    return [(int(i), books[int(group.index[i])]) for i in here]


# --- plain bytes ----------------------------------------------------------------------------------------------


@operation("cp.async.bulk.shared::cluster.global", "cp.async.bulk.shared::cta.global")
def load_bytes(ins: Instruction) -> Action:
    """`cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [from], size, [mbarrier]`."""
    _refuse(ins, "multicast")

    def run(group: Any, to: Array, source: Array, size: Any, bar: Array) -> None:
        targets, barriers = _places(group, to), _places(group, bar)
        for i, (where, (count,)) in enumerate(_per_lane(group, (size,), source)):
            block, start = targets[i]
            _check_plain(group, i, start, where, count)
            content = group.run.memory.span(group, where, count, False, position=i).copy()
            _take_off(ins, group, i, (block, start + np.arange(count)), barriers[i], content)

    to, source, size, bar = ins.operands[:4]
    return Action(run, inputs=(address(to), address(source), (size, np.uint32), address(bar)))


@operation("cp.async.bulk.global.shared::cta")
def store_bytes(ins: Instruction) -> Action:
    """`cp.async.bulk.global.shared::cta.bulk_group [to], [from], size`."""

    def run(group: Any, to: Array, source: Array, size: Any) -> None:
        for i, (where, start, (count,)) in enumerate(_per_lane(group, (size,), to, source)):
            _check_plain(group, i, start, where, count)
            group.run.memory.span(group, where, count, False, position=i)
            _start_store(ins, group, i, start + np.arange(count), lambda content, where=where: [(where, content)])

    to, source, size = ins.operands[:3]
    return Action(run, inputs=(address(to), address(source), (size, np.uint32)))


def _check_plain(group: Any, i: int, start: int, where: int, count: int) -> None:
    if start % BULK_ALIGNMENT or where % BULK_ALIGNMENT or count % BULK_ALIGNMENT:
        message = f"bulk copy of {count} bytes: both addresses and the size must be multiples of {BULK_ALIGNMENT}"
        group.fail("misaligned", message, [i])
    _check_inside(group, i, start, count)


@operation("cp.async.bulk.prefetch")
def prefetch(ins: Instruction) -> Action:
    """A hint for the L2 cache: nothing to do."""
    return Action(lambda group: None)


@operation("cp.async.bulk")
def other(ins: Instruction) -> Action:
    """Copies within clusters and reductions."""
    raise Unsupported(ins.opcode)
