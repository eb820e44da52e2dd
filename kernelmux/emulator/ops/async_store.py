"""st.async and red.async: stores to the shared memory of other blocks of the cluster, which report to an mbarrier there.

The values arrive when a thread asks for the phase of that mbarrier; until then the place counts as uninitialised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address, not_emulated, operation, registers
from kernelmux.emulator.ops.atomic import update_of
from kernelmux.emulator.ops.bulk_reduce import SHARED, kind_of
from kernelmux.emulator.ops.mbarrier import Flight, Mbarriers, shared_offsets
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.cluster import split

Array = NDArray[Any]
REPORT = "mbarrier::complete_tx::bytes"
Land = Callable[[int, Array, Array], None]  # block, offsets [lanes], values [lanes, count]


@operation("st.async")
def store(ins: Instruction) -> Action:
    """`st.async{.weak}{.shared::cluster}.mbarrier::complete_tx::bytes{.v2, .v4}.b32 [to], values, [mbarrier]`."""
    dtype = _checked(ins)
    if dtype.itemsize not in (4, 8):
        raise Unsupported(f"{ins.opcode}: expected a type of 32 or 64 bits")

    def run(group: Any, to: Array, bar: Array, *values: Any) -> None:
        rows = np.stack([group.full(v) for v in values], axis=1)  # [lanes, count]
        target = shared_offsets(ins, group, to)
        place = _barriers(ins, group, target, bar)
        _reserve(group, target, rows)
        shared = group.run.shared

        def land(block: int, offsets: Array, values: Array) -> None:
            where = offsets[:, None] + np.arange(values.itemsize * values.shape[1])
            shared.bytes[block, where] = values.view(np.uint8)
            if shared.shadow is not None:
                shared.shadow.written(block, where)

        _start(ins, group, place, target, rows, land)

    to, values, bar = ins.operands
    return Action(run, inputs=(address(to), address(bar), *registers(values, dtype)))


@operation("red.async")
def reduce(ins: Instruction) -> Action:
    """`red.async.relaxed.cluster{.shared::cluster}.mbarrier::complete_tx::bytes.add.u32 [to], value, [mbarrier]`."""
    dtype, kind = _checked(ins), kind_of(ins, SHARED)
    update = update_of(kind, ins.type)

    def run(group: Any, to: Array, bar: Array, value: Any) -> None:
        target = shared_offsets(ins, group, to)
        place = _barriers(ins, group, target, bar)
        group.run.shared.position(group, target, dtype.itemsize, True)
        _promise(group, place[0], target, dtype.itemsize)
        shared = group.run.shared

        def land(block: int, offsets: Array, values: Array) -> None:
            there = shared.bytes[block].view(dtype)
            for offset, one in zip((offsets // dtype.itemsize).tolist(), values[:, 0], strict=True):
                there[offset] = update(there[offset], one)
            if shared.shadow is not None:
                shared.shadow.written(block, offsets[:, None] + np.arange(dtype.itemsize))

        _start(ins, group, place, target, group.full(value)[:, None], land)

    to, value, bar = ins.operands
    return Action(run, inputs=(address(to), address(bar), (value, dtype)))


def _checked(ins: Instruction) -> np.dtype[Any]:
    """The type; `Unsupported` for the forms that write to global memory, of compute capability 10.0."""
    if not ins.has(REPORT) or ins.space not in ("shared", "generic"):
        raise not_emulated(ins)
    return dtype_of(ins.type)


def _barriers(ins: Instruction, group: Any, target: Array, bar: Any) -> tuple[Array, Array]:
    """The mbarrier of every lane, which must be in the block of its target, of a cluster of several blocks."""
    if group.run.geometry.cluster == 1:
        group.fail("asynchronous", f"{ins.name}.async needs a cluster of more than one block", [0])
    place: tuple[Array, Array] = Mbarriers.of(group).place(group, shared_offsets(ins, group, bar))
    block, _ = split(group, target)
    apart = block != place[0]
    if apart.any():
        group.fail("asynchronous", f"{ins.name}.async to one block, with an mbarrier of another", apart)
    return place


def _reserve(group: Any, target: Array, rows: Array) -> None:
    """Checks the target as a write would, and leaves nothing there until the values arrive."""
    size = rows.itemsize * rows.shape[1]
    nothing = np.full((group.n, size // 4), 0xFFFFFFFF, np.uint32)
    group.run.access.store(group, "shared", target, nothing if size > 4 else nothing[:, 0], None)
    shadow = group.run.shared.shadow
    if shadow is not None:
        block, offsets = split(group, target)
        _require_one_each(group, block, offsets)
        for b, mine in _by_block(block):
            shadow.forget(b, offsets[mine][:, None] + np.arange(size))


def _require_one_each(group: Any, block: Array, offsets: Array) -> None:
    order = np.lexsort((offsets, block))
    again = (np.diff(block[order]) == 0) & (np.diff(offsets[order]) == 0)
    if again.any():
        group.fail("race", "two threads store to one place of shared memory with st.async", [int(order[1:][again][0])])


def _promise(group: Any, block: Array, target: Array, size: int) -> None:
    shadow = group.run.shared.shadow
    if shadow is not None:
        _, offsets = split(group, target)
        for b, mine in _by_block(block):
            where = offsets[mine][:, None] + np.arange(size)
            shadow.promise(group, b, where, "an asynchronous reduction", int(np.flatnonzero(mine)[0]))


def _by_block(block: Array) -> Iterator[tuple[int, Array]]:
    for b in np.unique(block).tolist():
        yield b, block == b


def _start(ins: Instruction, group: Any, place: tuple[Array, Array], target: Array, rows: Array, land: Land) -> None:
    """One flight for all lanes that report to one barrier."""
    barriers = Mbarriers.of(group)
    _, offsets = split(group, target)
    for key in sorted(set(zip(place[0].tolist(), place[1].tolist(), strict=True))):
        mine = (place[0] == key[0]) & (place[1] == key[1])
        arrive = _arrival(barriers, key, offsets[mine], np.ascontiguousarray(rows[mine]), land)
        barriers.start(key, Flight(arrive, ins, int(group.index[mine][0])))


def _arrival(barriers: Mbarriers, key: tuple[int, int], offsets: Array, rows: Array, land: Land) -> Any:
    def arrive(waiter: Any) -> None:
        land(key[0], offsets, rows)
        place = (np.array([key[0]]), np.array([key[1]]))
        barriers.bytes[place] -= rows.nbytes
        barriers.complete(waiter, place)

    return arrive
