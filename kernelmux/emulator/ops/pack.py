"""cvt.pack: two integers, clamped to 2 to 16 bits each, side by side in the low bits of a register."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.ops import Action, not_emulated, operation
from kernelmux.emulator.ptx.parser import Instruction

I4, I8, U4 = (np.dtype(t) for t in ("i4", "i8", "u4"))
TWO = ("u16", "s16")  # fill the register
THREE = ("u2", "s2", "u4", "s4", "u8", "s8")  # leave room for the low bits of a third operand


@operation("cvt.pack")
def pack(ins: Instruction) -> Action:
    """`cvt.pack.sat.u16.s32 d, a, b` and `cvt.pack.sat.u8.s32.b32 d, a, b, c`: b lowest, then a, then c."""
    kind = ins.modifiers[2]
    target, a, b, *rest = ins.operands
    if not ins.has("sat") or kind not in (THREE if rest else TWO):
        raise not_emulated(ins)
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)

    def run(*values: Any) -> Any:
        mask = (1 << bits) - 1
        parts = [np.clip(v.astype(I8), low, high) & mask for v in values[:2]]
        packed = parts[0] << bits | parts[1]
        if len(values) > 2:
            packed = packed | values[2].astype(I8) << 2 * bits
        return (packed & 0xFFFFFFFF).astype(U4)

    return Action(run, ((a, I4), (b, I4), *((c, U4) for c in rest)), ((target, U4),), pure=True)
