"""Which memory accesses an instruction makes, and at which of its operands the addresses are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np

from kernelmux.emulator.analysis.flow import Step, value_name
from kernelmux.emulator.memory.global_memory import LOCAL, PARAM, SHARED, SHIFT
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.operands import Address, Immediate, Operand, Register, TensorAddress, Vector
from kernelmux.emulator.ptx.parser import Instruction

SPACES = ("global", "shared", "local")
WINDOWS = {SHARED: "shared", LOCAL: "local", PARAM: "param"}


@dataclass(frozen=True)
class Access:
    """slot: number of the input that holds the address; size: bytes per lane; lanes: only these have an address;
    limit: number of an input that is 0 (or true, with `ignores`) in lanes that read nothing.

    Space bulk: slot is the input with the tensor map, or with size 0 that of the number of bytes.
    """

    operation: str  # load, ldmatrix, store, atomic, reduction, copy
    space: str  # generic: decided by the address; bulk: moved by the TMA unit
    slot: int
    size: int
    lanes: int = 32
    limit: int | None = None
    ignores: bool = False


def accesses(step: Step, used: Collection[str]) -> tuple[Access, ...]:
    """The accesses of an instruction; none for parameters and constants.

    used: registers that some instruction reads. ptxas turns an atomic whose result is not read into a reduction.
    """
    find = _FINDERS.get(step.name)
    if step.name == "atom" and value_name(step.instruction.operands[0]) not in used:
        find = _unread_atomic
    return tuple(a for a in find(step.instruction) if a.space in (*SPACES, "generic", "bulk")) if find else ()


def space_of(access: Access, address: np.ndarray) -> str:
    """The state space that an access goes to; that of its first lane for generic addresses."""
    if access.space != "generic" or not len(address):
        return access.space
    return WINDOWS.get(int(address[0]) >> SHIFT, "global")


def _width(operand: Operand, ptx_type: str) -> int:
    count = len(operand.items) if isinstance(operand, Vector) else 1
    return int(dtype_of(ptx_type).itemsize) * count


def _of_parameter(operand: Operand) -> bool:
    """An argument or result of a device function: kept in registers."""
    base = getattr(operand, "base", None)
    return not isinstance(operand, Address) or (isinstance(base, Register) and base.type.startswith("param"))


def _load(ins: Instruction) -> tuple[Access, ...]:
    target, source = ins.operands[:2]
    return () if _of_parameter(source) else (Access("load", ins.space, 0, _width(target, ins.type)),)


def _store(ins: Instruction) -> tuple[Access, ...]:
    target, source = ins.operands[:2]
    return () if _of_parameter(target) else (Access("store", ins.space, 0, _width(source, ins.type)),)


def _atomic(ins: Instruction) -> tuple[Access, ...]:
    return (Access("atomic", ins.space, 0, _width(ins.operands[2], ins.type)),)


def _reduction(ins: Instruction) -> tuple[Access, ...]:
    return (Access("reduction", ins.space, 0, _width(ins.operands[1], ins.type)),)


def _unread_atomic(ins: Instruction) -> tuple[Access, ...]:
    """Shared memory has no reductions."""
    return tuple(a if a.space == "shared" else replace(a, operation="reduction") for a in _atomic(ins))


def _copy(ins: Instruction) -> tuple[Access, ...]:
    """cp.async moves from global to shared memory; a lane whose source size is 0 reads nothing."""
    if ins.has("bulk"):
        return _bulk(ins)
    if not (ins.has("ca") or ins.has("cg")) or not isinstance(ins.operands[2], Immediate):
        return ()
    hinted = any("cache_hint" in modifier for modifier in ins.modifiers)
    optional = ins.operands[3 : len(ins.operands) - hinted]
    ignores = bool(optional) and isinstance(optional[0], Register) and optional[0].type == "pred"
    size = ins.operands[2].integer
    return (
        Access("copy", "global", 1, size, limit=2 if optional else None, ignores=ignores),
        Access("copy", "shared", 0, size),
    )


def _bulk(ins: Instruction) -> tuple[Access, ...]:
    """Copies of tiles and of plain bytes; what only commits, waits or prefetches moves nothing."""
    if ins.has("tensor"):
        return (Access("load" if isinstance(ins.operands[1], TensorAddress) else "store", "bulk", 1, 1),)
    loads = any(m.startswith("shared::") for m in ins.modifiers[2:3])
    if not ins.has("global") or ins.has("prefetch"):  # copies inside of a cluster leave global memory alone
        return ()
    return (Access("load" if loads else "store", "bulk", 2, 0),)


def _matrices(operation: str, ins: Instruction) -> tuple[Access, ...]:
    """ldmatrix and stmatrix: lane 8 * i + r has the address of row r, 16 bytes, of matrix i."""
    count = next((int(m[1]) for m in ins.modifiers if m in ("x1", "x2", "x4")), 1)
    return (Access(operation, ins.space, 0, 16, lanes=8 * count),)


_FINDERS: dict[str, Callable[[Instruction], tuple[Access, ...]]] = {
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "atom": _atomic,
    "red": _reduction,
    "cp": _copy,
    "ldmatrix": lambda ins: _matrices("ldmatrix", ins),
    "stmatrix": lambda ins: _matrices("store", ins),
}
