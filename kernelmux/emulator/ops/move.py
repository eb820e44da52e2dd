"""mov, cvta, isspacep: values and addresses from place to place."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.memory.global_memory import LOCAL, OFFSET, PARAM, SHARED, SHIFT
from kernelmux.emulator.ops import Action, operation, wide
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.operands import Immediate, Vector
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.cluster import TAG, ranks
from kernelmux.emulator.running.codegen import MOVE

WINDOW = {"shared": SHARED, "local": LOCAL, "param": PARAM}


@operation("mov")
def move(ins: Instruction) -> Action:
    if ins.type == wide.TYPE:
        return wide.move(ins)
    target, source = ins.operands
    if isinstance(target, Vector):
        return _unpack(ins, target, source)
    if isinstance(source, Vector):
        return _pack(ins, target, source)
    dtype = dtype_of(ins.type)
    return Action(code=MOVE, inputs=((source, dtype),), outputs=((target, dtype),), pure=True)


def _unpack(ins: Instruction, target: Vector, source: Any) -> Action:
    """One register into its equal parts, the lowest first."""
    whole, part, count = _parts(ins, target)

    def run(value: Any) -> tuple[Any, ...]:
        if value.__class__ is not np.ndarray:
            return tuple(np.array([value]).view(part))
        return tuple(np.ascontiguousarray(value).view(part).reshape(-1, count).T.copy())

    return Action(run, ((source, whole),), tuple((item, part) for item in target.items), pure=True)


def _pack(ins: Instruction, target: Any, source: Vector) -> Action:
    whole, part, count = _parts(ins, source)

    def run(*values: Any) -> Any:
        n = max(np.size(v) for v in values)
        if all(v.__class__ is not np.ndarray for v in values):
            return np.array(values, part).view(whole)[0]
        packed = np.empty((n, count), part)
        for i, value in enumerate(values):
            packed[:, i] = value
        return packed.reshape(-1).view(whole)

    return Action(run, tuple((item, part) for item in source.items), ((target, whole),), pure=True)


def _parts(ins: Instruction, vector: Vector) -> tuple[np.dtype[Any], np.dtype[Any], int]:
    whole, count = dtype_of(ins.type), len(vector.items)
    return whole, np.dtype(f"u{whole.itemsize // count}"), count


@operation("cvta")
def convert_address(ins: Instruction) -> Action:
    """Between an address in its own space and a generic one; global addresses are the same in both."""
    target, source = ins.operands
    dtype = dtype_of(ins.type)
    window = WINDOW.get(ins.space)
    if window is None:
        return Action(code=MOVE, inputs=((source, dtype),), outputs=((target, dtype),), pure=True)
    mask = Immediate(str(OFFSET)) if ins.has("to") else Immediate(str(window << SHIFT))
    code = "{0} & {1}" if ins.has("to") else "{0} | {1}"
    return Action(code=code, inputs=((source, dtype), (mask, dtype)), outputs=((target, dtype),), pure=True)


@operation("isspacep")
def is_space(ins: Instruction) -> Action:
    """`isspacep.global p, a`: whether a generic address lies in a space; `.shared` is that of the own block."""
    window, source = WINDOW.get(ins.space), (ins.operands[1], np.uint64)
    output = ((ins.operands[0], np.dtype(bool)),)
    if ins.space == "shared" and not ins.has("shared::cluster"):
        return Action(_in_own_block, (source,), output)

    def run(address: Any) -> Any:
        number = address >> np.uint64(SHIFT)
        if window is None:
            return ~np.isin(number, list(WINDOW.values()))[()]
        return number == window

    return Action(run, (source,), output, pure=True)


def _in_own_block(group: Any, address: Any) -> Any:
    tag = (group.full(address) >> np.uint64(TAG) & np.uint64(0xFF)).astype(np.int64)
    inside = group.full(address) >> np.uint64(SHIFT) == SHARED
    return inside & ((tag == 0) | (tag - 1 == ranks(group)))
