"""Arithmetic in float32 that sm_100 brought: on two numbers of a 64-bit register, and with operands of 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic.floats import flush, from_bf16
from kernelmux.emulator.ops import Action, floating
from kernelmux.emulator.ops.dispatch import by_type
from kernelmux.emulator.ops.pairs import packed
from kernelmux.emulator.ptx.parser import Instruction

F2, F4, U2, U8 = (np.dtype(t) for t in ("f2", "f4", "u2", "u8"))
SINGLE = {"add": floating.add, "sub": floating.subtract, "mul": floating.multiply, "fma": floating.fused}


def _single(ins: Instruction, type: str) -> tuple[Action, floating.Run]:
    """The same instruction on float32, and what it does as a function."""
    opcode = ins.opcode.replace(type, "f32")
    action = SINGLE[ins.name](Instruction(opcode, ins.operands, ins.guard, ins.text, ins.location))
    run = action.run or floating.function(action.code or "")
    return action, _of_flushed(run) if action.flushed else run


def _of_flushed(run: floating.Run) -> floating.Run:
    """With .ftz: see `Action.flushed`."""
    return lambda *values: run(*map(flush, values))


@by_type("add", "f32x2")
@by_type("sub", "f32x2")
@by_type("mul", "f32x2")
@by_type("fma", "f32x2")
def paired(ins: Instruction) -> Action:
    """Both halves of 64-bit registers, each rounded as a float32; their bits may be compared, so NaN is the hardware's."""
    action, run = _single(ins, "f32x2")
    inputs = tuple((operand, U8) for operand, _ in action.inputs)
    return Action(
        packed(F4, lambda *values: floating.canonical(run(*values))), inputs, ((ins.operands[0], U8),), pure=True
    )


@by_type("add", "f32.f16", "f32.bf16")
@by_type("sub", "f32.f16", "f32.bf16")
@by_type("fma", "f32.f16", "f32.bf16")
def mixed(ins: Instruction) -> Action:
    """All operands but the last have 16 bits: they become float32 first, which is exact."""
    half = U2 if ins.type == "bf16" else F2
    action, run = _single(ins, f"f32.{ins.type}")

    def widened(*values: Any) -> Any:
        return run(*(from_bf16(v) if half is U2 else v.astype(F4) for v in values[:-1]), values[-1])

    *short, last = ins.operands[1:]
    return Action(widened, (*((operand, half) for operand in short), (last, F4)), action.outputs, pure=True)
