"""Instructions that begin like emulated ones and are others: to run them as these would be wrong without a word."""

from __future__ import annotations

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, operation
from kernelmux.emulator.parser import Instruction


@operation("st.async", "st.bulk", "red.async")
def refused(ins: Instruction) -> Action:
    """Stores and reductions that report to an mbarrier, and stores of zeros by size."""
    raise Unsupported(f"the PTX instruction {ins.opcode} is not emulated")
