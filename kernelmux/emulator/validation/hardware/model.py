"""What is compared: one instruction, applied by every thread of a launch to operands of its own.

The code of a case may use
    %a0 %a1 ...  the operands of the thread          %d0      its result
    %m           address of its element of `memory`  %lane    its number in the warp
    %s           address of 16 bytes of its own in shared memory, not initialised
    %p %q        predicates                          %x %y    32-bit, %h %g 16-bit, %X %Y 64-bit registers
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernelmux.emulator.validation.hardware import values

COUNT, THREADS = 4096, 128  # of a launch, and of a block
HEADER = ".version 8.4\n.target sm_90a\n.address_size 64\n"


@dataclass(frozen=True)
class InstructionCase:
    """One instruction.

    name      as in PTX; after a blank, what distinguishes it from other cases of that name.
    family    the row of the table that it belongs to.
    code      PTX, see above.
    result    type of %d0, for which differences are counted.
    operands  the kind of each operand (see `values.KINDS`).
    memory    kind of what an atomic operation finds in memory; what it leaves there is compared too.
    cancel    the last operand is often the negative product of the others.
    """

    name: str
    family: str
    code: str
    result: str
    operands: tuple[str, ...]
    memory: str | None = None
    cancel: bool = False

    @property
    def stored(self) -> tuple[str, ...]:
        """The kinds of the arrays that are compared."""
        return (self.result, self.memory) if self.memory else (self.result,)

    @cached_property
    def inputs(self) -> list[np.ndarray[Any, Any]]:
        """Bits of the operands and of the memory, the same on every machine."""
        kinds = (*self.operands, self.memory) if self.memory else self.operands
        arrays = values.operands(self.name, kinds, COUNT)
        if self.cancel:
            values.cancel(arrays, self.operands)
        return arrays

    def kernel(self, name: str) -> str:
        """PTX of a kernel with the parameters operands..., result{, memory}."""
        count = len(self.operands)
        parameters = ", ".join(f".param .u64 p{i}" for i in range(count + len(self.stored)))
        loads = "".join(_load(i, kind) for i, kind in enumerate(self.operands))
        registers = " ".join(f".reg .{_register(kind)} %a{i};" for i, kind in enumerate(self.operands))
        memory = _address(count + 1, self.memory, "%m") if self.memory else ""
        return f"""
.visible .entry {name}({parameters})
{{
.shared .align 16 .b8 room[{16 * THREADS}];
.reg .{_register(self.result)} %d0; {registers}
.reg .pred %p; .reg .pred %q; .reg .b16 %h; .reg .b16 %g; .reg .b32 %x; .reg .b32 %y; .reg .b64 %X; .reg .b64 %Y;
.reg .b32 %i; .reg .b32 %lane; .reg .b32 %s; .reg .b64 %o; .reg .b64 %w; .reg .b64 %m;
mov.u32 %i, %tid.x; mov.u32 %s, room; mad.lo.u32 %s, %i, 16, %s; mov.u32 %lane, %laneid;
mov.u32 %x, %ctaid.x; mad.lo.u32 %i, %x, {THREADS}, %i;
{loads}{memory}{self.code}
{_address(count, self.result, "%w")}{_store(self.result)}ret;
}}
"""


def simple(family: str, opcode: str, kind: str, sources: int, result: str | None = None) -> InstructionCase:
    """`opcode %d0, %a0, ...` with operands of one kind."""
    names = ", ".join(f"%a{i}" for i in range(sources))
    return InstructionCase(opcode, family, f"{opcode} %d0, {names};", result or kind, (kind,) * sources)


def mixed(family: str, opcode: str, kinds: str, result: str) -> InstructionCase:
    """`opcode %d0, %a0, ...` with operands of several kinds."""
    operands = tuple(kinds.split())
    names = ", ".join(f"%a{i}" for i in range(len(operands)))
    return InstructionCase(opcode, family, f"{opcode} %d0, {names};", result, operands)


def _register(kind: str) -> str:
    return "pred" if kind == "pred" else f"b{8 * values.KINDS[kind].size}"


def _address(parameter: int, kind: str, register: str) -> str:
    size = values.KINDS[kind].size
    return f"ld.param.u64 {register}, [p{parameter}]; mad.wide.u32 {register}, %i, {size}, {register};\n"


def _load(number: int, kind: str) -> str:
    if kind == "pred":
        return _address(number, kind, "%o") + f"ld.global.b32 %x, [%o]; setp.ne.u32 %a{number}, %x, 0;\n"
    return _address(number, kind, "%o") + f"ld.global.{_register(kind)} %a{number}, [%o];\n"


def _store(kind: str) -> str:
    if kind == "pred":
        return "selp.b32 %x, 1, 0, %d0; st.global.b32 [%w], %x;\n"
    return f"st.global.{_register(kind)} [%w], %d0;\n"
