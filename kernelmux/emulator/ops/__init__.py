"""Operation modules: what each PTX instruction does to a group of lanes.

A module registers builders. A builder looks at one parsed instruction once, when its kernel is compiled, and returns an
`Action`; the action's `run` is called every time a group of lanes reaches the instruction.

    @operation("mma")
    def mma(ins: Instruction) -> Action:
        d, a, b, c = ins.operands                       # four Vector operands
        return Action(run, inputs=registers(a, U32) + registers(b, U32) + registers(c, F32),
                      outputs=registers(d, F32), scope="warp")

    def run(group: Group, *inputs): ...                 # returns one value, or a tuple in the order of outputs

Values: every input is an array `(n,)` of the named dtype, n = lanes of the group, or a numpy scalar when all lanes
agree (`group.full(x)` makes it an array). Inputs must not be changed in place. `run` returns arrays `(n,)` or scalars
of the output dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ptx.parser import Address, Instruction, Operand, Vector

Builder = Callable[[Instruction], "Action"]
Slot = tuple[Operand, Any]

OPERATIONS: dict[str, Builder] = {}


@dataclass(frozen=True)
class Action:
    """One instruction, ready to run.

    run      `run(group, *inputs)`.
    inputs   (operand, dtype) pairs; an `Address` operand arrives as base + offset in int64, whatever its dtype says.
    outputs  (operand, dtype) pairs; a sink `_` may be among them.
    scope    which lanes must be there.
             "thread": any. "warp": only whole warps arrive, in lane order, so `x.reshape(-1, 32)` is one row per warp.
             "warpgroup": whole groups of four warps, rows of 128. "members": the lanes that `members` names.
             "barrier": the threads of a block (see ops/barrier.py).
    members  for scope "members": the position in `inputs` of the mask of lanes that take part (shfl, vote).
    ready    blocking instruction: `ready(group, *inputs)` -> bool array (n,) or bool. Lanes that are not ready wait
             and ask again when other lanes have run; if no lane can go on, the launch ends with a deadlock error.
    pure     a function of the inputs alone: called as `run(*inputs)`, may be run for lanes whose guard is off.
    code     pure and short: a Python expression in `{0}`, `{1}`, … and the names of `codegen.NAMES`, instead of `run`.
    bits     integer code that gives the same bits for signed and unsigned operands.
    exact    `run` always returns arrays (n,) or numpy scalars of the output dtypes, which then need not be looked at.
    flushed  float32 inputs arrive with zeros for subnormal numbers (.ftz): a register is flushed once in a block.
    guarded  called as `run(group, mask, *inputs)`: handles a guard itself, mask is None or a bool array (n,).
    near     an `Address` in shared memory with a 32-bit base may arrive as (base, offset): see `shared_address`.
    partly   `partly(wanted)` takes the place of `run` when only the outputs where `wanted` is true are used afterwards.
    effect   takes the place of `run` when no output is used afterwards (an atomic whose old value is not read).
    """

    run: Callable[..., Any] | None = None
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    scope: Literal["thread", "warp", "warpgroup", "members", "barrier"] = "thread"
    members: int = 0
    ready: Callable[..., Any] | None = None
    pure: bool = False
    code: str | None = None
    bits: bool = False
    exact: bool = False
    flushed: bool = False
    guarded: bool = False
    near: bool = False
    partly: Callable[[tuple[bool, ...]], Callable[..., Any]] | None = None
    effect: Callable[..., Any] | None = None


def operation(*names: str) -> Callable[[Builder], Builder]:
    """Registers a builder for instructions whose name starts with one of `names` ("mma", "cp.async.bulk").

    The longest match wins.
    """

    def register(builder: Builder) -> Builder:
        for name in names:
            OPERATIONS[name] = builder
        return builder

    return register


def registers(operand: Operand, dtype: Any) -> tuple[Slot, ...]:
    """The members of a `{a, b, c}` operand (or the operand itself) as slots of one dtype."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    return tuple((item, dtype) for item in items)


def address(operand: Operand) -> Slot:
    """The slot of an `[address]` operand: int64, base + offset."""
    if not isinstance(operand, Address):
        raise TypeError(f"expected an address operand, got {operand}")
    return (operand, np.int64)


def not_emulated(ins: Instruction, why: str = "") -> Unsupported:
    """The error for an instruction that is not emulated, or not in this form."""
    return Unsupported(f"the PTX instruction {ins.opcode} is not emulated{why and f': {why}'}")


def find(opcode: str) -> Builder | None:
    """The builder registered for the longest prefix of a dotted opcode."""
    prefix = opcode
    while prefix not in OPERATIONS:
        if "." not in prefix:
            return None
        prefix = prefix.rsplit(".", 1)[0]
    return OPERATIONS[prefix]
