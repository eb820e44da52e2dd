"""The registers that never hold a subnormal float32, whatever a kernel is given: .ftz has nothing to do for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kernelmux.emulator.analysis.flow import Flow, Step, definitions
from kernelmux.emulator.ptx.operands import Immediate, Operand, Register
from kernelmux.emulator.ptx.syntax import Instruction

F4, U4, LEAST = np.dtype("f4"), np.dtype("u4"), 2.0**-126
# With .ftz their results are no subnormal numbers either. Not so tanh and sin, which return small arguments as they are.
FLUSHING = {"add", "sub", "mul", "fma", "mad", "neg", "abs", "min", "max", "div", "rcp", "sqrt", "rsqrt", "ex2"}
EXACT = {"f16", "s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"}  # none of them is subnormal as a float32


def never_subnormal(flow: Flow) -> frozenset[str]:
    """The registers all of whose definitions are such; those that hold a parameter are not."""
    from_others: dict[str, set[str]] = {}
    other = {parameter.name for parameter in flow.function.parameters}
    for step in flow.steps:
        sources = _sources(step)
        for name in definitions(step):
            if sources is None:
                other.add(name)
            else:
                from_others.setdefault(name, set()).update(sources)
    found = set(from_others) - other
    while lost := {name for name in found if not from_others[name] <= found}:
        found -= lost
    return frozenset(found)


def _sources(step: Step) -> set[str] | None:
    """The registers of which the result has the bits, {} for a result that is never subnormal; None: it may be."""
    ins = step.instruction
    if ins.name in FLUSHING and ins.has("ftz") and ins.type == "f32":
        return set()
    if ins.name == "cvt" and ins.modifiers[-2:-1] == ("f32",) and ins.type in EXACT:
        return set()
    if ins.name == "mov" and len(ins.operands) == 2 and ins.type in ("f32", "b32"):
        return _copied(ins, ins.operands[1:])
    if ins.name == "selp" and ins.type in ("f32", "b32"):
        return _copied(ins, ins.operands[1:3])
    return None


def _copied(ins: Instruction, operands: tuple[Operand, ...]) -> set[str] | None:
    found = set(_names(operands, F4 if ins.type == "f32" else U4))
    return None if "" in found else found


def _names(operands: tuple[Operand, ...], dtype: np.dtype[Any]) -> Iterator[str]:
    """Names of registers, none for a constant that is no subnormal number, "" for what may be one."""
    for operand in operands:
        if isinstance(operand, Immediate):
            if 0 < abs(operand.value(dtype).view(F4)) < LEAST:
                yield ""
        else:
            yield operand.name if isinstance(operand, Register) and not operand.negated else ""
