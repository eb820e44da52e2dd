"""tcgen05.mma, commit: products of sm_100, that one thread starts and that add to tensor memory.

A product reads its operands and adds when a thread asks for the phase of the mbarrier that tcgen05.commit named, never
earlier: a kernel that does not wait finds the old sums, one that overwrites an operand too early multiplies the new one.
Sums are formed as by wgmma of an H200, those of 8-bit floats with all digits; no sm_100 was there to compare with.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.arithmetic.fused_dot import fused_dot
from kernelmux.emulator.arithmetic.matrix_elements import STORAGE, to_float
from kernelmux.emulator.memory.global_memory import SHIFT
from kernelmux.emulator.ops import Action, address, not_emulated, operation
from kernelmux.emulator.ops.matrix_descriptor import SharedOperand, require_units_visible
from kernelmux.emulator.ops.mbarrier import Flight, Mbarriers, shared_offsets
from kernelmux.emulator.ops.pending_at_exit import never_waited_for
from kernelmux.emulator.ops.tensor_core import F32, INTEGERS, S32, U32, add_integers, integer_product
from kernelmux.emulator.ops.tensor_memory import TensorMemory, require_one_block
from kernelmux.emulator.ptx.parser import Address, Instruction

Array = NDArray[Any]
K_BYTES = 32  # of a row of A, or a column of B, in one instruction
# Of each kind: the number of its sums' type in an instruction descriptor, and its elements by theirs.
KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "f16": (1, ("f16", "bf16")),
    "tf32": (1, ("", "", "tf32")),
    "f8f6f4": (1, ("e4m3", "e5m2")),
    "i8": (2, ("u8", "s8")),
}


@dataclass(frozen=True)
class ProductShape:
    """What an instruction descriptor says: both operands, and what is done to products and sums."""

    a: SharedOperand
    b: SharedOperand
    negated: bool
    saturates: bool

    @cached_property
    def lanes(self) -> Array:
        """The lanes of tensor memory that the rows lie in: 64 rows are 16 of each quarter."""
        rows = np.arange(self.a.rows)
        return rows if self.a.rows == 128 else rows // 16 * 32 + rows % 16


def _shape(group: Any, i: int, kind: str, bits: int) -> ProductShape:
    """The meaning of the instruction descriptor of lane i (PTX ISA, "Instruction descriptor"), if it is emulated."""
    sums, elements = KINDS[kind]
    a, b = (dict(enumerate(elements)).get(bits >> at & 7, "") for at in (7, 10))
    m, n = (bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3
    if bits & 7 or bits >> 4 & 3 != sums or not a or not b or bits >> 30:
        known = f"dense products of {', '.join(filter(None, elements))} with sums of 32 bits are emulated"
        group.fail("unsupported", f"tcgen05.mma.kind::{kind} with the instruction descriptor {bits:#x}: {known}", [i])
    if m not in (64, 128) or not 8 <= n <= 256 or n % (16 if m == 128 else 8):
        group.fail("argument", f"tcgen05.mma has no product of {m} rows and {n} columns", [i])
    k = K_BYTES // np.dtype(STORAGE[a]).itemsize
    left = SharedOperand("tcgen05.mma", m, k, a, bool(bits >> 15 & 1))
    right = SharedOperand("tcgen05.mma", n, k, b, bool(bits >> 16 & 1))
    return ProductShape(left, right, bool((bits >> 13 ^ bits >> 14) & 1), bool(bits >> 3 & 1))


@dataclass(frozen=True)
class Product:
    """A product that a thread of one block has started: what it reads, and where it adds."""

    ins: Instruction
    lane: int  # the thread, in the chunk
    block: int
    shape: ProductShape
    a: Array | int  # units in shared memory, or the address of A in tensor memory
    b: Array
    sums: int  # address in tensor memory
    adds: bool  # to what is there, which it replaces otherwise

    def land(self, run: Any, memory: TensorMemory) -> None:
        """Multiplies what the operands hold now."""
        shape, place = self.shape, self._region(self.sums, self.shape.b.rows)
        left = to_float(self._left(run, memory), shape.a.kind)
        left = -left if shape.negated else left
        right = to_float(self._read(run, shape.b, self.b), shape.b.kind).swapaxes(1, 2)
        before = memory.words[place] if self.adds else np.zeros((shape.a.rows, shape.b.rows), U32)
        if shape.a.kind in INTEGERS:
            total = add_integers(integer_product(left, right), before.view(S32), shape.saturates)
        else:
            total = fused_dot(left, right, before.view(F32)[None], (shape.a.kind, shape.b.kind))
        memory.words[place] = np.ascontiguousarray(total[0]).view(U32)

    def _left(self, run: Any, memory: TensorMemory) -> Array:
        if isinstance(self.a, np.ndarray):
            return self._read(run, self.shape.a, self.a)
        words = memory.words[self._region(self.a, K_BYTES // 4)]
        return np.ascontiguousarray(words).view(STORAGE[self.shape.a.kind])[None]

    def _read(self, run: Any, operand: SharedOperand, units: Array) -> Array:
        return operand.matrices(run.shared.bytes.view(np.complex128)[self.block, units >> 4])

    def _region(self, where: int, columns: int) -> tuple[int, Array, slice]:
        first = where & 0xFFFF
        return self.block, self.shape.lanes + (where >> 16), slice(first, first + columns)


@dataclass
class Queue:
    """The products of one thread, which are done in order: those under way, and how many are done."""

    waiting: deque[Product] = field(default_factory=deque)
    done: int = 0

    @property
    def started(self) -> int:
        return self.done + len(self.waiting)


class Products:
    """The products of a chunk of blocks, by the thread that started them."""

    def __init__(self, run: Any, memory: TensorMemory) -> None:
        self.run, self.memory, self.queues = run, memory, defaultdict[int, Queue](Queue)

    @staticmethod
    def of(group: Any) -> Products:
        """The products of the chunk that `group` belongs to."""

        def make() -> Products:
            return Products(group.run, TensorMemory.of(group))

        found: Products = group.run.kept("tcgen05", make, Products.check_landed)
        return found

    def commit(self, group: Any, ins: Instruction, i: int, key: tuple[int, int]) -> None:
        """The mbarrier `key` (block, offset / 8) hears when all products that lane i has started are done."""
        barriers, lane = Mbarriers.of(group), int(group.index[i])
        queue, place = self.queues[lane], (np.array([key[0]]), np.array([key[1]]))
        count = queue.started

        def arrive(waiter: Any) -> None:
            while queue.done < count:
                queue.waiting.popleft().land(self.run, self.memory)
                queue.done += 1
            barriers.pending[place] -= 1
            barriers.complete(waiter, place)

        barriers.start(key, Flight(arrive, ins, lane, awaited=False))

    def check_landed(self) -> None:
        """At the end of a chunk: in full mode an error for products that no thread waited for."""
        for product in (p for queue in self.queues.values() for p in queue.waiting if self.run.checks == "full"):
            what = "this product (tcgen05.commit, its mbarrier)"
            raise never_waited_for(self.run, product.ins, product.lane, what)


@operation("tcgen05.mma")
def mma(ins: Instruction) -> Action:
    """`tcgen05.mma.cta_group::1.kind::{f16, tf32, f8f6f4, i8} [d], a, b, descriptor, adds`.

    a is a descriptor of shared memory, or the `[address]` of a matrix in tensor memory.
    """
    require_one_block(ins)
    kind = next((m[6:] for m in ins.modifiers if m.startswith("kind::")), "")
    if kind not in KINDS or len(ins.modifiers) != 3 or len(ins.operands) != 5:
        raise not_emulated(ins, f"the plain forms of kind {', '.join(KINDS)} are")
    d, a, b, descriptor, adds = ins.operands
    in_memory = isinstance(a, Address)

    def run(group: Any, *values: Any) -> None:
        memory, queues = TensorMemory.of(group), Products.of(group).queues
        for i, (to, left, right, bits, keeps) in enumerate(zip(*(group.full(v).tolist() for v in values), strict=True)):
            shape = _shape(group, i, kind, bits)
            _require_region(group, i, memory, to, shape, shape.b.rows)
            if in_memory:
                _require_region(group, i, memory, left, shape, K_BYTES // 4)
            operand = left if in_memory else _in_shared(group, i, left, shape.a)
            lane, block = int(group.index[i]), int(group.block[i])
            product = Product(ins, lane, block, shape, operand, _in_shared(group, i, right, shape.b), to, bool(keeps))
            queues[lane].waiting.append(product)

    left = address(a) if in_memory else (a, np.uint64)
    return Action(run, inputs=(address(d), left, (b, np.uint64), (descriptor, np.uint32), (adds, np.bool_)))


def _require_region(group: Any, i: int, memory: TensorMemory, where: int, shape: ProductShape, columns: int) -> None:
    """Fails unless a matrix at this address lies within allocated columns, from a lane on that its rows may begin at."""
    rows, lane = shape.a.rows, where >> 16
    if lane not in ((0,) if rows == 128 else (0, 16)):
        group.fail("misaligned", f"a matrix of {rows} rows begins at lane {lane} of tensor memory", [i])
    memory.require_allocated(group, group.block[i : i + 1], (where & 0xFFFF) + np.arange(columns)[None], [i])


def _in_shared(group: Any, i: int, descriptor: int, operand: SharedOperand) -> Array:
    """The units of an operand in shared memory, checked: in full mode also that what was written there is visible."""
    if descriptor >> 61 & 1:
        group.fail("unsupported", "a descriptor of tcgen05.mma whose swizzle keeps 32 bytes together", [i])
    units = operand.units(group, np.array([descriptor], np.uint64), [i])
    if group.run.checks == "full":
        require_units_visible(group, group.block[i : i + 1], units, operand.instruction, np.array([i]))
    return units


@operation("tcgen05.commit")
def commit(ins: Instruction) -> Action:
    """`tcgen05.commit.cta_group::1.mbarrier::arrive::one{.shared::cluster}.b64 [p]`: p hears when the products are done."""
    require_one_block(ins)
    if "multicast::cluster" in ins.modifiers or len(ins.operands) != 1:
        raise not_emulated(ins, "the form for one mbarrier is")

    def run(group: Any, where: Array) -> None:
        where = _mbarrier(ins, group, where)
        blocks, words = Mbarriers.of(group).place(group, where)
        for i, key in enumerate(zip(blocks.tolist(), words.tolist(), strict=True)):
            Products.of(group).commit(group, ins, i, key)

    return Action(run, inputs=(address(ins.operands[0]),))


def _mbarrier(ins: Instruction, group: Any, where: Any) -> Array:
    """Its offset in shared memory. Triton 3.6 gives that, widened, where PTX asks for a generic address."""
    where = group.full(where)
    return where if (where >> SHIFT == 0).all() else shared_offsets(ins, group, where)
