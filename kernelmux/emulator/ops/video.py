"""vadd2, vabsdiff4 and their kin: two or four integers side by side in a register, merged with or added to a third one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, not_emulated, operation
from kernelmux.emulator.ptx.operands import Immediate, Register, Special
from kernelmux.emulator.ptx.parser import Instruction

I8, U4 = np.dtype("i8"), np.dtype("u4")


def _average(a: Any, b: Any) -> Any:
    """Half of the sum, rounded away from zero above zero and down below it."""
    total = a + b
    return total + (total >= 0) >> 1


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vavrg": _average,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@operation(*(f"{name}{count}" for name in _FUNCTIONS for count in (2, 4)))
def arithmetic(ins: Instruction) -> Action:
    """`vabsdiff4.u32.u32.u32{.sat} d, a, b, c` takes the place of c, `vabsdiff4.u32.u32.u32.add d, a, b, c` adds to it."""
    kinds, rest = ins.modifiers[:3], set(ins.modifiers[3:])
    if not set(kinds) <= {"u32", "s32"} or not rest <= {"sat", "add"} or len(rest) > 1:
        raise not_emulated(ins)
    return _lanewise(ins, _FUNCTIONS[ins.name[:-1]], kinds[1:], kinds[0] if "sat" in rest else None)


@operation("vset2", "vset4")
def compare(ins: Instruction) -> Action:
    """`vset4.u32.s32.lt{.add} d, a, b, c`: 1 where the comparison holds."""
    kinds, relation, rest = ins.modifiers[:2], ins.modifiers[2], ins.modifiers[3:]
    if not set(kinds) <= {"u32", "s32"} or relation not in _COMPARISONS or rest not in ((), ("add",)):
        raise not_emulated(ins)
    return _lanewise(ins, _COMPARISONS[relation], kinds, None)


def _lanewise(ins: Instruction, run: Callable[[Any, Any], Any], kinds: tuple[str, ...], clamp: str | None) -> Action:
    """clamp: the type that .sat limits results to."""
    bits = 8 if ins.name.endswith("4") else 16
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if clamp == "s32" else (0, (1 << bits) - 1)
    if not all(isinstance(o, Register | Immediate | Special) for o in ins.operands) or len(ins.operands) != 4:
        raise Unsupported(f"{ins.opcode}: only whole registers are emulated, without masks and selectors")
    shifts = np.arange(0, 32, bits)
    adds, mask = ins.has("add"), (1 << bits) - 1

    def parts(value: Any, kind: str) -> Any:
        fields = np.asarray(value).astype(I8)[..., None] >> shifts & mask
        return fields - ((fields >> bits - 1) << bits) if kind == "s32" else fields

    def combined(a: Any, b: Any, c: Any) -> Any:
        result = run(parts(a, kinds[0]), parts(b, kinds[1])).astype(I8)
        if clamp is not None:
            result = np.clip(result, low, high)
        total = result.sum(-1) + c if adds else ((result & mask) << shifts).sum(-1)
        return (total & 0xFFFFFFFF).astype(U4)[()]

    return Action(combined, tuple((o, U4) for o in ins.operands[1:]), ((ins.operands[0], U4),), pure=True)
