"""Instructions that begin like emulated ones and are others: to run them as these would be wrong without a word."""

from __future__ import annotations

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, operation
from kernelmux.emulator.ptx.parser import Instruction


@operation("st.bulk")
def refused(ins: Instruction) -> Action:
    """Stores of zeros by size, of compute capability 10.0."""
    raise Unsupported(f"the PTX instruction {ins.opcode} is not emulated")
