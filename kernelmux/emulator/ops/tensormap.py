"""tensormap: tensor maps that a kernel makes itself, in shared memory, and publishes to global memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address, operation
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.tma.tensor_map import replaced

SIZE = 128  # bytes of a tensor map


def _bytes(group: Any, i: int, space: str, where: int, write: bool) -> Any:
    """The 128 bytes at an address of lane i, as a view."""
    if space != "shared":
        return group.run.memory.span(group, where, SIZE, write, position=i)
    shared, block = group.run.shared, int(group.block[i])
    if where % SIZE or where < 0 or where + SIZE > shared.size:
        group.fail("out of bounds", f"tensor map at shared offset {where}, of {shared.size}; aligned to {SIZE}", [i])
    if write and shared.shadow is not None:
        shared.shadow.written(block, where + np.arange(SIZE))
    return shared.bytes[block, where : where + SIZE]


@operation("tensormap.replace")
def replace(ins: Instruction) -> Action:
    """`tensormap.replace.tile.field.shared::cta.b1024.b32 [p]{, index}, value`."""
    pointer, *index, value = ins.operands
    if not ins.has("tile"):
        raise Unsupported(ins.opcode)
    field = ins.modifiers[ins.modifiers.index("tile") + 1]

    def run(group: Any, where: Any, new: Any, at: Any = 0) -> None:
        numbers = zip(*(group.full(x).tolist() for x in (where, new, at)), strict=True)
        for i, (start, content, position) in enumerate(numbers):
            place = _bytes(group, i, ins.space, start, True)
            try:
                place[:] = np.frombuffer(replaced(place.tobytes(), field, position, content), np.uint8)
            except ValueError as error:
                group.fail("unsupported", str(error), [i])

    slots = ((value, np.uint64 if ins.modifiers[-1] == "b64" else np.uint32), *((x, np.uint32) for x in index))
    return Action(run, inputs=(address(pointer), *slots))


@operation("tensormap.cp_fenceproxy")
def copy(ins: Instruction) -> Action:
    """`tensormap.cp_fenceproxy.global.shared::cta.*.sync.aligned [to], [from], 128`: one copy for the whole warp."""

    def run(group: Any, to: Any, source: Any) -> None:
        targets, sources = group.full(to).tolist(), group.full(source).tolist()
        for i in range(0, group.n, 32):
            _bytes(group, i, "global", targets[i], True)[:] = _bytes(group, i, "shared", sources[i], False)

    return Action(run, inputs=(address(ins.operands[0]), address(ins.operands[1])), scope="warp")
