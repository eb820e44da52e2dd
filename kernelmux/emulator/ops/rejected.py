"""Instructions that are not emulated, though their names begin like those of emulated ones: they raise `Unsupported`."""

from __future__ import annotations

from kernelmux.emulator.ops import Action, not_emulated, operation
from kernelmux.emulator.ptx.parser import Instruction


@operation("st.bulk", "cp.async.bulk", "cp.reduce.async.bulk")
def rejected(ins: Instruction) -> Action:
    """Stores of zeros by size, and forms of bulk copies and reductions: none exists up to compute capability 9.0."""
    raise not_emulated(ins)


@operation("tcgen05")
def fifth_generation(ins: Instruction) -> Action:
    """What else the tensor cores of sm_100 have: copies to their memory, shifts, products of pairs of blocks."""
    raise not_emulated(ins, "of tcgen05, alloc, dealloc, ld, st, mma and commit are, for one block")
