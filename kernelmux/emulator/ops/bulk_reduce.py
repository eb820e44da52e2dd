"""cp.reduce.async.bulk: shared memory added to (or otherwise combined with) global memory, or that of another block."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.arithmetic.floats import flush
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address, operation, registers
from kernelmux.emulator.ops.atomic import update_of
from kernelmux.emulator.ops.bulk_bytes import Sent, check_plain, sent_to_blocks
from kernelmux.emulator.ops.bulk_copy import per_lane, refuse, store_tile
from kernelmux.emulator.ops.bulk_group import Combine, start_store
from kernelmux.emulator.ops.bulk_load import ArrivalTarget
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.parser import Instruction, TensorAddress, Vector
from kernelmux.emulator.tma.tensor_map import TileMap

Array = NDArray[Any]
INTEGERS = ("u32", "s32", "u64")
GLOBAL = {
    "add": (*INTEGERS, "f32", "f64", "f16", "bf16"),
    "min": (*INTEGERS, "s64", "f16", "bf16"),
    "max": (*INTEGERS, "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}
SHARED = {
    "add": INTEGERS,
    "min": ("u32", "s32"),
    "max": ("u32", "s32"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32",),
    "or": ("b32",),
    "xor": ("b32",),
}


def kind_of(ins: Instruction, allowed: dict[str, tuple[str, ...]]) -> str:
    """The operation that an instruction names; `Unsupported` for one that has not its type."""
    kind = next((m for m in ins.modifiers if m in allowed), None)
    if kind is None or ins.type not in allowed[kind]:
        raise Unsupported(f"{ins.opcode}: the ISA has no such reduction")
    return kind


def combination(kind: str, element: str) -> Combine:
    """The reduction of two arrays of bytes. float32 sums flush subnormal numbers, others are rounded to nearest."""
    dtype, update = dtype_of(element), update_of(kind, element)
    flushes = element == "f32"

    def combine(there: Array, row: Array) -> Array:
        old, new = (np.ascontiguousarray(x).view(dtype) for x in (there, row))
        result = flush(update(flush(old), flush(new))) if flushes else update(old, new)
        return np.ascontiguousarray(result, dtype).view(np.uint8)

    return combine


@operation("cp.reduce.async.bulk.global.shared::cta")
def reduce_global(ins: Instruction) -> Action:
    """`cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [to], [from], size{, cache policy}`."""
    combine = combination(kind_of(ins, GLOBAL), ins.type)
    if (ins.type in ("f16", "bf16") and ins.has("add")) != ins.has("noftz"):
        raise Unsupported(f"{ins.opcode}: .noftz goes with sums of f16 and bf16, and with nothing else")

    def run(group: Any, to: Array, where: Array, size: Any) -> None:
        for i, (begin, start, (count,)) in enumerate(per_lane(group, (size,), to, where)):
            check_plain(group, i, start, begin, count)
            group.run.memory.span(group, begin, count, True, position=i)
            rows = partial(_one_row, begin)
            start_store(ins, group, i, start + np.arange(count), rows, combine)

    to, where, size = ins.operands[:3]
    return Action(run, inputs=(address(to), address(where), (size, np.uint32)))


def _one_row(begin: int, content: Array) -> list[tuple[int, Array]]:
    return [(begin, content)]


@operation("cp.reduce.async.bulk.shared::cluster.shared::cta")
def reduce_shared(ins: Instruction) -> Action:
    """`cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [to], [from], size,
    [mbarrier]`.
    """
    combine = combination(kind_of(ins, SHARED), ins.type)

    def run(group: Any, *operands: Any) -> None:
        for report, place, sent in sent_to_blocks(ins, group, operands, "a bulk reduction"):
            reduce_into(report, group, place, sent, combine)

    to, where, size, bar = ins.operands
    return Action(run, inputs=(address(to), address(where), (size, np.uint32), address(bar)))


def reduce_into(report: ArrivalTarget, group: Any, to: tuple[int, int], sent: Sent, combine: Combine) -> None:
    """Start the reduction of what is sent into the place (block, offset)."""
    shared, (block, start) = group.run.shared, to
    offsets = start + np.arange(report.size)
    if shared.shadow is not None:
        shared.shadow.promise(group, block, offsets, "a bulk reduction", report.i)

    def land(waiter: Any) -> None:
        there = shared.bytes[block, start : start + report.size]
        there[:] = combine(there, sent.content(waiter))
        if shared.shadow is not None:
            shared.shadow.written(block, offsets)

    report.start(group, land)


@operation("cp.reduce.async.bulk.tensor")
def reduce_tile(ins: Instruction) -> Action:
    """`cp.reduce.async.bulk.tensor.2d.global.shared::cta.add{.tile}.bulk_group [map, {c0, c1}], [from]{, policy}`.

    `.im2col_no_offs` takes the place of `.tile` for maps of im2col. The type of the elements is that of the tensor map.
    """
    refuse(ins, "im2col::", "tile::")
    kind = next(m for m in ins.modifiers if m in GLOBAL)
    tiled = ins.operands[0]
    if not isinstance(tiled, TensorAddress):
        raise Unsupported(ins.opcode)

    def run(group: Any, where: Array, map_: Array, *coordinates: Array) -> None:
        store_tile(ins, group, where, map_, *coordinates, combine=partial(_combination_of, group, kind))

    coordinates = registers(Vector(tiled.coordinates), np.int32)
    return Action(run, inputs=(address(ins.operands[1]), (tiled.base, np.int64), *coordinates))


def _combination_of(group: Any, kind: str, tile: TileMap) -> Combine:
    """The reduction of elements of a tensor map; bitwise ones take integers of 32 and 64 bits."""
    element = tile.element.removesuffix(".ftz")
    if kind in ("and", "or", "xor"):
        element = {"u32": "b32", "s32": "b32", "u64": "b64", "s64": "b64"}.get(element, element)
    if element not in GLOBAL[kind]:
        group.fail(
            "asynchronous", f"a tensor reduction .{kind} of elements {tile.element}, which is not in the ISA", [0]
        )
    return combination(kind, element)
