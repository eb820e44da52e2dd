"""cp.async.bulk.tensor: TMA copies of tiles, which one thread starts for all.

Loads report to an mbarrier and arrive when a thread waits for it (bulk_load.py); stores read shared memory when their
thread waits for the bulk group (bulk_group.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address, operation, registers
from kernelmux.emulator.ops.bulk_group import start_store
from kernelmux.emulator.ops.bulk_load import ArrivalTarget, goals, known, places, take_off
from kernelmux.emulator.ptx.parser import Instruction, TensorAddress, Vector
from kernelmux.emulator.tma.swizzle import swizzled
from kernelmux.emulator.tma.tensor_map import TileMap, decode

Array = NDArray[Any]
TILE_ALIGNMENT = 128  # of a tile in shared memory, bytes


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


def tile_offsets(group: Any, i: int, start: int, tile: TileMap) -> Array:
    """Shared-memory offset of every byte of a tile, checked. Narrower lines are a swizzle's width apart."""
    if start % TILE_ALIGNMENT:
        group.fail("misaligned", f"a TMA tile at shared offset {start} is not aligned to {TILE_ALIGNMENT} bytes", [i])
    line = tile.line_bytes
    pitch = max(line, tile.swizzle)
    check_inside(group, i, start, tile.tile_bytes // line * pitch)
    return _offsets(start, tile.tile_bytes, line, pitch, tile.swizzle)


@lru_cache(maxsize=128)
def _offsets(start: int, size: int, line: int, pitch: int, swizzle: int) -> Array:
    """Where the bytes of a tile lie; kept, as a loop comes to the same few places again and again."""
    at = np.arange(size)
    offsets: Array = swizzled(start + at // line * pitch + at % line, swizzle)
    offsets.flags.writeable = False
    return offsets


def check_inside(group: Any, i: int, start: int, size: int) -> None:
    legal = group.run.shared.size
    if start < 0 or start + size > legal:
        group.fail("out of bounds", f"bulk copy of {size} bytes at shared offset {start}, of {legal}", [i])


def refuse(ins: Instruction, *prefixes: str) -> None:
    refused = [m for m in ins.modifiers if m.startswith(prefixes)]
    if refused:
        raise Unsupported(f"{ins.opcode}: {', '.join(refused)} is not emulated")


@operation("cp.async.bulk.tensor")
def tensor_copy(ins: Instruction) -> Action:
    """Loads `[to], [map, {c0, ..}], [mbarrier]{, offsets}{, blocks}` and stores `[map, {c0, ..}], [from]`, 1-D to 5-D.

    Offsets belong to loads in im2col mode.
    """
    refuse(ins, "cta_group", "im2col::", "tile::")
    loads = isinstance(ins.operands[1], TensorAddress)
    tiled = ins.operands[1] if loads else ins.operands[0]
    if not isinstance(tiled, TensorAddress):
        raise Unsupported(ins.opcode)
    coordinates = registers(Vector(tiled.coordinates), np.int32)
    if not loads:
        inputs = (address(ins.operands[1]), (tiled.base, np.int64), *coordinates)
        return Action(partial(store_tile, ins), inputs=inputs)
    rest = list(ins.operands[3:])
    offsets = registers(rest.pop(0), np.uint16) if ins.has("im2col") else ()
    mask = ((rest[0], np.uint16),) if ins.has("multicast::cluster") else ()
    inputs = (address(ins.operands[0]), (tiled.base, np.int64), address(ins.operands[2]), *coordinates, *offsets, *mask)
    return Action(partial(_load_tile, ins, len(coordinates), len(offsets)), inputs=inputs)


def _load_tile(
    ins: Instruction, rank: int, space: int, group: Any, to: Array, map_: Array, bar: Array, *rest: Any
) -> None:
    maps, targets, barriers = tensor_maps(group, map_), places(group, to), places(group, bar)
    numbers, mask = rest[: rank + space], rest[rank + space :]
    masks = group.full(mask[0]).tolist() if mask else [None] * group.n
    for i, (place,) in enumerate(per_lane(group, numbers)):
        at, shift = place[:rank], place[rank:]
        tile, (block, start) = maps[i], targets[i]
        check_rank(ins, group, i, tile, at)
        offsets = tile_offsets(group, i, start, tile)
        memory = group.run.memory.span(group, tile.address, tile.extent, False, position=i)
        content = tile.read(memory, at, shift)
        for goal in goals(group, i, masks[i], block):
            barrier = (goal, barriers[i][1]) if masks[i] is not None else barriers[i]
            take_off(ArrivalTarget(ins, i, *barrier, content.size), group, (goal, offsets), known(content))


def per_lane(group: Any, coordinates: Sequence[Array], *addresses: Any) -> Any:
    """Plain numbers for each lane: addresses, and the coordinates as a tuple."""
    places = [group.full(c).tolist() for c in coordinates]
    return zip(*(group.full(a).tolist() for a in addresses), zip(*places, strict=True), strict=True)


def check_rank(ins: Instruction, group: Any, i: int, tile: TileMap, at: Sequence[int]) -> None:
    """The instruction and the tensor map must be of one rank and one mode."""
    if len(at) != tile.rank:
        message = f"a {len(at)}-D copy with the tensor map of a {tile.rank}-D array"
        group.fail("asynchronous", message, [i])
    by_pixels = any(m.startswith("im2col") for m in ins.modifiers)
    if by_pixels != (tile.pixels is not None):
        words = ("im2col", "tiles") if by_pixels else ("tiles", "im2col")
        group.fail("asynchronous", f"a copy of {words[0]} with a tensor map of {words[1]}", [i])


def store_tile(
    ins: Instruction, group: Any, where: Array, map_: Array, *coordinates: Array, combine: Any = None
) -> None:
    """Starts the stores of the lanes of a group; combine(tile map): the function of a reduction."""
    maps = tensor_maps(group, map_)
    for i, (start, at) in enumerate(per_lane(group, coordinates, where)):
        tile = maps[i]
        check_rank(ins, group, i, tile, at)
        offsets = tile_offsets(group, i, start, tile)
        rows = partial(tile.rows, coordinates=at)
        start_store(ins, group, i, offsets, rows, combine and combine(tile))


@operation("cp.async.bulk.prefetch")
def prefetch(ins: Instruction) -> Action:
    """A hint for the L2 cache: nothing to do."""
    return Action(lambda group: None)
