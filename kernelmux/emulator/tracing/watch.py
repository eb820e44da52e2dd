"""The hooks: what a watched launch reports, turned into counts per step of each function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.analysis.flow import Flow, Step, uses
from kernelmux.emulator.memory.global_memory import OFFSET, SHIFT
from kernelmux.emulator.ops.bulk_copy import tensor_maps
from kernelmux.emulator.tracing import warp_requests
from kernelmux.emulator.tracing.accesses import Access, accesses, space_of
from kernelmux.emulator.tracing.owners import ArrayArgument, Owners
from kernelmux.emulator.tracing.reuse import Reuse
from kernelmux.emulator.tracing.traffic import Traffic
from kernelmux.emulator.tracing.warp_requests import NO_LANE, SECTOR, WARP

Array = NDArray[Any]
Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class Drawn:
    """The warp whose addresses are kept: linear number of its block in the grid, and its number in the block."""

    block: int
    warp: int


class LaunchCounts:
    """Everything that is counted in one launch."""

    def __init__(self, drawn: Drawn, arrays: dict[str, ArrayArgument]) -> None:
        self.drawn, self.arrays = drawn, arrays
        self.functions: dict[int, FunctionCounts] = {}
        self.owners: dict[str, Owners] = {}
        self.reuse = Reuse()
        self.argument_at = sorted((a.address, a.name) for a in arrays.values())

    def of(self, flow: Flow) -> FunctionCounts:
        """See `watch_hook.LaunchWatch`."""
        counts = self.functions.get(id(flow))
        if counts is None:
            counts = self.functions[id(flow)] = FunctionCounts(self, flow)
        return counts

    def finish(self) -> None:
        """See `watch_hook.LaunchWatch`."""
        self.reuse.forget()

    def argument(self, address: int) -> str:
        """The argument that an address belongs to: the last that begins at or before it in its segment."""
        names = [name for start, name in self.argument_at if start <= address and start >> SHIFT == address >> SHIFT]
        return names[-1] if names else "global memory"

    def store(self, name: str, table: Array, block: Array, drawn: Array, size: int) -> None:
        """Notes which blocks write to an argument."""
        if name in self.arrays:
            owners = self.owners.setdefault(name, Owners(self.arrays[name]))
            owners.write(table, block, drawn, size)

    def store_bytes(self, name: str, address: int, count: int, group: Any, position: int) -> None:
        """Notes that the block of the lane at `position` writes `count` bytes to an argument, all in one go."""
        if name in self.arrays:
            block = int(group.run.geometry.in_grid(group.block[position]))
            drawn = (block, int(group.thread[position]) // WARP) == (self.drawn.block, self.drawn.warp)
            self.owners.setdefault(name, Owners(self.arrays[name])).write_bytes(address, count, block, drawn)


class FunctionCounts:
    """Counts per step of one function; see `watch_hook.FunctionWatch` for the hooks."""

    def __init__(self, launch: LaunchCounts, flow: Flow) -> None:
        self.launch, self.flow = launch, flow
        steps = len(flow.steps)
        self.warps, self.threads = [0] * steps, [0] * steps
        self.branches, self.divergent = [0] * steps, [0] * steps
        self.traffic: list[dict[Key, Traffic]] = [{} for _ in range(steps)]
        used = {name for step in flow.steps for name in uses(step)}
        self.plans = [accesses(step, used) for step in flow.steps]
        # A guarded instruction with side effects is a jump around it here: counted once, and not as a branch.
        self.around = [_is_around(flow.steps, pc) for pc in range(steps)]
        self.guarded = [False, *self.around[:-1]] if steps else []

    def step(self, pc: int, group: Any) -> None:
        if not self.guarded[pc]:
            self.warps[pc] += len(group.lanes.warp_starts)
            self.threads[pc] += group.n

    def branch(self, pc: int, group: Any, condition: Any) -> None:
        if self.around[pc]:
            return
        starts = group.lanes.warp_starts
        self.branches[pc] += len(starts)
        if np.ndim(condition):
            jumps, falls = np.logical_or.reduceat(condition, starts), np.logical_or.reduceat(~condition, starts)
            self.divergent[pc] += int((jumps & falls).sum())

    def access(self, pc: int, group: Any, mask: Any, *inputs: Any) -> None:
        for access in self.plans[pc]:
            lanes = _taking_part(access, group, mask, inputs)
            address = np.asarray(group.full(inputs[access.slot]))[lanes]
            if access.space == "bulk":
                self._count_bulk(pc, group, access, inputs)
            elif len(address):
                self._count(pc, group, access, lanes, address)

    def _count(self, pc: int, group: Any, access: Access, lanes: Array, address: Array) -> None:
        space = space_of(access, address)
        if space == "param":
            return
        table, first = _table(group, lanes, address if space == "global" else address & OFFSET)
        block = group.run.geometry.in_grid(group.block[first])
        drawn = (block == self.launch.drawn.block) & (group.thread[first] // WARP == self.launch.drawn.warp)
        name = self.launch.argument(int(address[0])) if space == "global" else space
        traffic = self._of(pc, (space, access.operation, name, access.size))
        traffic.add(table, drawn)
        if space == "global":
            row, sector = warp_requests.distinct_pairs(np.where(table == NO_LANE, NO_LANE, table // SECTOR))
            takes_turns = access.operation in ("atomic", "reduction")
            traffic.sectors += int(warp_requests.atomic_sectors(table).sum()) if takes_turns else len(row)
            self.launch.reuse.note(traffic, group.block[first][row], sector)
            if access.operation in ("store", "atomic", "reduction"):
                self.launch.store(name, table, block, drawn, access.size)

    def _of(self, pc: int, key: Key) -> Traffic:
        if key not in self.traffic[pc]:
            array = self.launch.arrays.get(key[2])
            self.traffic[pc][key] = Traffic(*key, base=array.address if array else None)
        return self.traffic[pc][key]

    def _count_bulk(self, pc: int, group: Any, access: Access, inputs: tuple[Any, ...]) -> None:
        """A copy of the TMA unit: `inputs[access.slot]` is the tensor map, or the number of bytes."""
        what, stores = inputs[access.slot], access.operation == "store"
        if access.size:
            tiles = tensor_maps(group, what)
            moved = [(tile.address, tile.tile_bytes) for tile in tiles]
            written = _tile_rows(group, tiles, inputs[2:]) if stores else []
        else:
            moved = list(zip(group.full(inputs[0 if stores else 1]).tolist(), group.full(what).tolist(), strict=True))
            written = [[one] for one in moved] if stores else []
        for i, (address, size) in enumerate(moved):
            name = self.launch.argument(int(address))
            traffic = self._of(pc, ("bulk", access.operation, name, int(size)))
            traffic.requests += 1
            traffic.lanes += 1
            for at, count in written[i] if stores else ():
                self.launch.store_bytes(name, at, count, group, i)


def _is_around(steps: list[Step], pc: int) -> bool:
    """Whether a step is the jump that stands for the guard of the next one."""
    step = steps[pc]
    return (
        step.instruction.opcode == "bra"
        and pc + 1 < len(steps)
        and (step.instruction.text == steps[pc + 1].instruction.text and steps[pc + 1].action is not None)
    )


def _tile_rows(group: Any, tiles: list[Any], coordinates: tuple[Any, ...]) -> list[list[tuple[int, int]]]:
    """Address and bytes of the rows of every lane's tile that lie in its array."""
    places = zip(*(group.full(c).tolist() for c in coordinates), strict=True)
    return [
        [(at, len(row)) for at, row in tile.rows(np.empty(tile.tile_bytes, np.uint8), place)]
        if tile.rank == len(place)
        else []
        for tile, place in zip(tiles, places, strict=True)
    ]


def _taking_part(access: Access, group: Any, mask: Any, inputs: tuple[Any, ...]) -> Array:
    """Positions of the lanes that access memory."""
    active = np.ones(group.n, bool) if mask is None else np.array(np.broadcast_to(mask, (group.n,)))
    if access.lanes < WARP:
        active &= group.lane < access.lanes
    if access.limit is not None:
        active &= group.full(inputs[access.limit]).astype(bool) != access.ignores
    return np.flatnonzero(active)


def _table(group: Any, lanes: Array, address: Array) -> tuple[Array, Array]:
    """Addresses as one row per warp that takes part, and the position of the first lane of each row."""
    warp = group.warp[lanes]
    starts = np.flatnonzero(np.diff(warp, prepend=-1))
    rank = np.cumsum(np.diff(warp, prepend=-1) != 0) - 1
    return warp_requests.rows(address, rank, group.lane[lanes], len(starts)), lanes[starts]
