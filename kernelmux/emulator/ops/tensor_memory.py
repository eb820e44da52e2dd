"""tcgen05.alloc, dealloc, ld, st: the tensor memory of sm_100, of one block (`cta_group::1`).

Each block has 128 lanes of 512 columns of 32 bits; an address is lane << 16 | column. A warp reaches the quarter of the
lanes that its number modulo 4 names. Loads and stores are done at once: that a wait is missing does not show.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address, not_emulated, operation, registers
from kernelmux.emulator.ops.pending_at_exit import never_waited_for
from kernelmux.emulator.ops.tensor_core import U32, unwrapped
from kernelmux.emulator.ptx.parser import Immediate, Instruction
from kernelmux.emulator.running.lanes import WARP

Array = NDArray[Any]
LANES, COLUMNS = 128, 512
LEAST = 32  # columns of an allocation, always a power of two
POISON = 0xFFFFFFFF  # NaN, in columns that were allocated and not written


class TensorMemory:
    """The tensor memory of a chunk of blocks: `words[block, lane, column]`."""

    def __init__(self, run: Any) -> None:
        blocks = run.geometry.blocks
        self.words = np.empty((blocks, LANES, COLUMNS), U32)  # pages that no kernel touches cost nothing
        self.allocated = np.zeros((blocks, COLUMNS), np.bool_)
        self.closed = np.zeros(blocks, np.bool_)  # blocks that gave up the right to allocate
        self.held: dict[tuple[int, int], tuple[int, Instruction, int]] = {}  # (block, first column): columns, by whom
        self.run = run

    @staticmethod
    def of(group: Any) -> TensorMemory:
        """The tensor memory of the chunk that `group` belongs to."""
        make = partial(TensorMemory, group.run)
        found: TensorMemory = group.run.kept("tensor memory", make, TensorMemory.check_freed)
        return found

    def allocate(self, group: Any, ins: Instruction, i: int, count: int) -> int:
        """The first of `count` columns that are the block's of lane i from now on."""
        block = int(group.block[i])
        if not LEAST <= count <= COLUMNS or count & (count - 1):
            message = f"{count} columns of tensor memory: expected a power of two from {LEAST} to {COLUMNS}"
            group.fail("argument", message, [i])
        if self.closed[block]:
            group.fail("asynchronous", "tcgen05.alloc after tcgen05.relinquish_alloc_permit", [i])
        places = range(0, COLUMNS - count + 1, LEAST)
        first = next((at for at in places if not self.allocated[block, at : at + count].any()), -1)
        if first < 0:
            free = COLUMNS - int(self.allocated[block].sum())
            group.fail(
                "deadlock", f"tcgen05.alloc of {count} columns waits for ever: {free} of {COLUMNS} are free", [i]
            )
        self.allocated[block, first : first + count] = True
        self.words[block, :, first : first + count] = POISON
        self.held[block, first] = count, ins, int(group.index[i])
        return first

    def free(self, group: Any, i: int, first: int, count: int) -> None:
        """Gives back what one allocation of the block of lane i was given."""
        block = int(group.block[i])
        held = self.held.get((block, first), (0,))[0]
        if held != count:
            message = f"tcgen05.dealloc of {count} columns from {first:#x} on, where {held} were allocated"
            group.fail("argument", message, [i])
        del self.held[block, first]
        self.allocated[block, first : first + count] = False

    def require_allocated(self, group: Any, blocks: Array, columns: Array, lanes: Any = None) -> None:
        """Fails unless columns `[n, ..]` of n blocks are allocated; lanes: the positions in the group they belong to."""
        inside = (columns >= 0) & (columns < COLUMNS)
        owned = self.allocated[blocks[:, None], np.where(inside, columns, 0)] & inside
        if not owned.all():
            bad = np.flatnonzero(~owned.all(axis=1))[:1]
            column = int(columns[bad[0]][~owned[bad[0]]][0])
            message = f"column {column} of tensor memory, which is not allocated (tcgen05.alloc)"
            group.fail("out of bounds", message, bad if lanes is None else [int(lanes[bad[0]])])

    def check_freed(self) -> None:
        """At the end of a chunk: in full mode an error for columns that were not given back."""
        for count, ins, lane in self.held.values() if self.run.checks == "full" else ():
            raise never_waited_for(self.run, ins, lane, f"tcgen05.dealloc of these {count} columns of tensor memory")


def require_one_block(ins: Instruction) -> None:
    """Pairs of blocks (`cta_group::2`) are not emulated."""
    if not ins.has("cta_group::1"):
        raise not_emulated(ins, "tensor memory of one block is, cta_group::1")


@operation("tcgen05.alloc")
def alloc(ins: Instruction) -> Action:
    """`tcgen05.alloc.cta_group::1.sync.aligned{.shared::cta}.b32 [p], columns`: writes the first one's address to p."""
    require_one_block(ins)
    pointer, count = ins.operands

    def run(group: Any, where: Array, columns: Any) -> None:
        memory, columns, first = TensorMemory.of(group), group.full(columns), np.zeros(group.n, U32)
        for i in range(0, group.n, WARP):
            first[i : i + WARP] = memory.allocate(group, ins, i, int(columns[i]))
        group.store(ins.space, where, first, mask=group.lane == 0)

    return Action(run, inputs=(address(pointer), (count, U32)), scope="warp")


@operation("tcgen05.dealloc")
def dealloc(ins: Instruction) -> Action:
    """`tcgen05.dealloc.cta_group::1.sync.aligned.b32 address, columns`."""
    require_one_block(ins)
    place, count = ins.operands

    def run(group: Any, where: Any, columns: Any) -> None:
        memory, where, columns = TensorMemory.of(group), group.full(where), group.full(columns)
        for i in range(0, group.n, WARP):
            memory.free(group, i, int(where[i]), int(columns[i]))

    return Action(run, inputs=((place, U32), (count, U32)), scope="warp")


@operation("tcgen05.relinquish_alloc_permit")
def relinquish(ins: Instruction) -> Action:
    """`tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned`: the block allocates no more."""
    require_one_block(ins)

    def run(group: Any) -> None:
        TensorMemory.of(group).closed[group.block] = True

    return Action(run, scope="warp")


@operation(
    "tcgen05.wait::ld", "tcgen05.wait::st", "tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync"
)
def nothing(ins: Instruction) -> Action:
    """Orders loads and stores, which are done at once."""
    return Action(lambda group: None)


# --- loads and stores -----------------------------------------------------------------------------------------


def _places(ins: Instruction, split: int, count: int, group: Any, where: Any) -> tuple[Array, Array, Array]:
    """Block `[n, 1]`, lane `[n, 1]` and column `[n, count]` of each register of every thread, checked."""
    where = group.full(where).astype(np.int64)
    if (where.reshape(-1, WARP) != where.reshape(-1, WARP)[:, :1]).any():
        group.fail("divergence", f"{ins.opcode}: the threads of a warp name different addresses")
    row, column = where >> 16, (where & 0xFFFF)[:, None] + np.arange(count)
    if split < 0:
        row = row + group.lane
    else:  # 16x32bx2: threads 16 to 31 have the lanes of threads 0 to 15, `split` columns on
        row, column = row + group.lane % 16, column + (group.lane // 16 * split)[:, None]
    mine = row // WARP == group.thread // WARP % 4
    if not mine.all():
        group.fail(
            "out of bounds", "a warp reaches the 32 lanes of tensor memory that its number modulo 4 names", ~mine
        )
    TensorMemory.of(group).require_allocated(group, group.block, column)
    return group.block[:, None], row[:, None], column


def _form(ins: Instruction, register_operand: Any, rest: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
    """The columns between the halves of `.16x32bx2`, or -1 for `.32x32b`; the registers as slots."""
    slots = registers(register_operand, U32)
    shape = next((m for m in ins.modifiers if m in ("32x32b", "16x32bx2")), None)
    plain = set(ins.modifiers) <= {"ld", "st", "sync", "aligned", "b32", shape, f"x{len(slots)}"}
    if shape is None or not plain or any(not isinstance(x, Immediate) for x in rest):
        raise Unsupported(f"{ins.opcode}: the shapes 32x32b and 16x32bx2 are emulated, without packing")
    return (int(rest[0].integer) if shape == "16x32bx2" else -1), slots


@operation("tcgen05.ld")
def load(ins: Instruction) -> Action:
    """`tcgen05.ld.sync.aligned.{32x32b, 16x32bx2}.xN.b32 {r, ..}, [address]{, columns between the halves}`."""
    destination, place, *rest = ins.operands
    split, outputs = _form(ins, destination, tuple(rest))
    find = partial(_places, ins, split, len(outputs))

    def run(group: Any, where: Any) -> Any:
        return unwrapped(tuple(np.ascontiguousarray(TensorMemory.of(group).words[find(group, where)].T)))

    return Action(run, inputs=(address(place),), outputs=outputs, scope="warp")


@operation("tcgen05.st")
def store(ins: Instruction) -> Action:
    """`tcgen05.st.sync.aligned.{32x32b, 16x32bx2}.xN.b32 [address]{, columns between the halves}, {r, ..}`."""
    place, *rest, source = ins.operands
    split, inputs = _form(ins, source, tuple(rest))
    find = partial(_places, ins, split, len(inputs))

    def run(group: Any, where: Any, *values: Any) -> None:
        TensorMemory.of(group).words[find(group, where)] = np.stack([group.full(v) for v in values], axis=1)

    return Action(run, inputs=(address(place), *inputs), scope="warp")
