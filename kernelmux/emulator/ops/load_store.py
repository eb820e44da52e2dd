"""ld, st and their kin: memory accesses of single lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.ops import Action, address, operation, registers, wide
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.operands import Address, Register
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.group import Group

PARAMETER = "param"


@operation("ld", "ldu")
def load(ins: Instruction) -> Action:
    if ins.type == wide.TYPE:
        return wide.load(ins)
    target, source = ins.operands[:2]
    outputs = registers(target, dtype_of(ins.type))
    if _is_call_parameter(source):
        return _load_parameter(source, outputs)
    count = len(outputs)

    def run(wanted: tuple[bool, ...] | None = None) -> Any:
        return _loader(ins, count, wanted)

    return Action(
        run(),
        (address(source),),
        outputs,
        guarded=True,
        near=ins.space == "shared",
        partly=run if count > 1 else None,
        exact=True,
    )


def _loader(ins: Instruction, count: int, wanted: tuple[bool, ...] | None) -> Any:
    """wanted: the elements of a vector that are used; compilers read padding along."""
    space, dtype, acquire, strong = ins.space, dtype_of(ins.type), _acquires(ins), _is_strong(ins)

    def run(group: Group, mask: Any, where: Any) -> Any:
        values = group.run.access.load(group, space, where, dtype, count, mask, wanted, strong)
        if acquire:
            group.run.shared.synchronise(None)
        if count == 1:
            return values
        return tuple(np.ascontiguousarray(values.T)) if values.ndim == 2 else tuple(values)

    return run


@operation("st")
def store(ins: Instruction) -> Action:
    if ins.type == wide.TYPE:
        return wide.store(ins)
    target, source = ins.operands[:2]
    values = registers(source, dtype_of(ins.type))
    if _is_call_parameter(target):
        return _store_parameter(target, values)
    return Action(
        _storer(ins.space, _acquires(ins)), (address(target), *values), guarded=True, near=ins.space == "shared"
    )


def _storer(space: str, release: bool) -> Any:
    def run(group: Group, mask: Any, where: Any, *values: Any) -> None:
        if release:
            group.run.shared.synchronise(None)
            group.run.access.fence(group)
        data = values[0] if len(values) == 1 else np.stack([group.full(v) for v in values], axis=1)
        group.run.access.store(group, space, where, data, mask)

    return run


def _acquires(ins: Instruction) -> bool:
    """Whether the access orders others: what is known of shared memory's readers and writers is then void."""
    return ins.has("acquire") or ins.has("release")


def _is_strong(ins: Instruction) -> bool:
    """Whether the access may be part of a hand-over from thread to thread."""
    return _acquires(ins) or ins.has("volatile") or ins.has("relaxed")


@operation("prefetch", "prefetchu", "discard", "applypriority")
def prefetch(ins: Instruction) -> Action:
    return Action(code="None", pure=True)


@operation("createpolicy")
def policy(ins: Instruction) -> Action:
    return Action(code="np.uint64(0)", outputs=((ins.operands[0], np.uint64),), pure=True)


# ---- parameters of device functions: the bytes of all lanes, (n, size), as the value of one register


def _is_call_parameter(operand: Any) -> bool:
    return (
        isinstance(operand, Address) and isinstance(operand.base, Register) and operand.base.type.startswith(PARAMETER)
    )


def _load_parameter(source: Any, outputs: Any) -> Action:
    dtype = np.dtype(outputs[0][1])

    def run(group: Group, data: Any) -> Any:
        values = [_field(group, data, source.offset + i * dtype.itemsize, dtype) for i in range(len(outputs))]
        return values[0] if len(values) == 1 else tuple(values)

    return Action(run, ((source.base, None),), outputs)


def _field(group: Group, data: Any, offset: int, dtype: np.dtype[Any]) -> np.ndarray:
    if np.ndim(data) < 2:
        return np.zeros(group.n, dtype)
    return np.ascontiguousarray(data[:, offset : offset + dtype.itemsize]).view(dtype)[:, 0]


def _store_parameter(target: Any, values: Any) -> Action:
    size, dtype = int(target.base.type[len(PARAMETER) :]), np.dtype(values[0][1])

    def run(group: Group, data: Any, *fields: Any) -> np.ndarray:
        changed: np.ndarray = data.copy() if np.ndim(data) == 2 else np.zeros((group.n, size), np.uint8)
        for i, field in enumerate(fields):
            at = target.offset + i * dtype.itemsize
            changed[:, at : at + dtype.itemsize] = np.ascontiguousarray(group.full(field))[:, None].view(np.uint8)
        return changed

    return Action(run, ((target.base, None), *values), ((target.base, None),))
