"""mma.sp: products with a matrix A of which half of each chunk is zero and not stored; the metadata say which.

A [16, K / 2] lies in registers as a dense matrix of that size would. Of each chunk of 4 elements 2 are stored (tf32: one
of 2; four bits: 2 pairs of 4 pairs), and 4 bits of metadata hold their places. Lanes of a quad g with metadata, for
rows g and g + 8 (PTX ISA, "Sparse matrix storage", and the order in which CUTLASS lays metadata out for ldmatrix):
    16 and 32 bits     one word for 16 stored bits of each row, row g in its lower half; lanes `selector` of m16n8k16,
                       2 * selector (first half of K) and the next one of m16n8k32; tf32 at half these K
    8 and 4 bits       one word for each row: lanes 2 * selector (row g) and the next one (row g + 8);
                       of the largest shapes four words, the second two for the second half of K
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.arithmetic.matrix_elements import STORAGE
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, operation, registers
from kernelmux.emulator.ops.mma import NARROW, REGISTER, elements, left, right, stacked, sums, unstacked
from kernelmux.emulator.ops.tensor_core import add_integers, fused, integer_product, shape_of
from kernelmux.emulator.ptx.parser import Immediate, Instruction

Array = NDArray[Any]
U32 = np.uint32
ORDERED = "sp::ordered_metadata"
# K by type of A, and how many values the selector has for each.
SELECTORS = {
    "f16": {16: 4, 32: 2},
    "bf16": {16: 4, 32: 2},
    "tf32": {8: 4, 16: 2},
    "s8": {32: 2, 64: 1},
    "u8": {32: 2, 64: 1},
    "s4": {64: 2, 128: 1},
    "u4": {64: 2, 128: 1},
    "e4m3": {64: 1},
    "e5m2": {64: 1},
}
INTEGERS = ("s8", "u8", "s4", "u4")
PAIRS_IN_ORDER = (0b0100, 0b1000, 0b1001, 0b1100, 0b1101, 0b1110)
PAIRS = tuple(code for code in range(16) if code & 3 != code >> 2)
SINGLES = (0b0100, 0b1110)  # tf32: the first of two elements, the second


@dataclass(frozen=True)
class Metadata:
    """Which lanes hold the metadata of a product, and how they are read."""

    kind: str
    k: int
    selector: int
    ordered: bool

    @property
    def unit(self) -> int:
        """Elements that are stored together."""
        return 2 if self.kind in ("s4", "u4") else 1

    @property
    def codes(self) -> tuple[int, ...]:
        """The values that four bits may have."""
        return SINGLES if self.kind == "tf32" else PAIRS_IN_ORDER if self.ordered else PAIRS

    def nibbles(self, words: Array) -> Array:
        """Four bits for every chunk, `[warps, 16 rows, chunks]`, from the words of all lanes `[warps, 32]`."""
        quads = words.reshape(-1, 8, 4)
        largest = self.k == max(SELECTORS[self.kind])
        if self.kind in ("f16", "bf16", "tf32"):
            first = 2 * self.selector if largest else self.selector
            chosen = quads[:, :, first : first + 1 + largest]  # [warps, g, halves of K]
            rows = [_split(chosen & U32(0xFFFF), 4), _split(chosen >> U32(16), 4)]
            return np.concatenate([row.reshape(len(quads), 8, -1) for row in rows], axis=1)
        first = 2 * self.selector
        chosen = quads if largest else quads[:, :, first : first + 2]  # [warps, g, row of two, then half of K]
        split = _split(chosen, 8).reshape(len(quads), 8, -1, 2, 8)  # [warps, g, half of K, row of two, chunk]
        return split.transpose(0, 3, 1, 2, 4).reshape(len(quads), 16, -1)

    def places(self, nibbles: Array) -> Array:
        """For every stored element its column of A, `[warps, 16, K / 2]`."""
        chunk = np.arange(nibbles.shape[2])
        if self.kind == "tf32":
            return (nibbles >> 1 & 1) + 2 * chunk
        units = np.stack([nibbles & 3, nibbles >> 2], axis=-1) + 4 * chunk[:, None]
        units = units.reshape(*nibbles.shape[:2], -1, 1)
        columns: Array = (units * self.unit + np.arange(self.unit)).reshape(*nibbles.shape[:2], -1)
        return columns


def _split(words: Array, count: int) -> Array:
    """The lowest `count` groups of four bits."""
    return (words[..., None] >> (4 * np.arange(count, dtype=U32)) & U32(15)).astype(np.int64)


def _checked(ins: Instruction) -> tuple[Metadata, tuple[str, str, str, str]]:
    d, a, b, c = ins.modifiers[-4:]
    m, n, k = shape_of(ins)
    selector = ins.operands[5]
    if (m, n) != (16, 8) or a not in SELECTORS or k not in SELECTORS[a]:
        raise Unsupported(f"{ins.opcode}: no such product; elements {', '.join(SELECTORS)} are emulated")
    alike = a == b or {a, b} <= {"s8", "u8"} or {a, b} <= {"s4", "u4"} or {a, b} <= {"e4m3", "e5m2"}
    halves = a not in INTEGERS and a not in ("bf16", "tf32")
    if not alike or c != d or d not in (("s32",) if a in INTEGERS else ("f32", "f16") if halves else ("f32",)):
        raise Unsupported(f"{ins.opcode}: the ISA has no product of these types")
    if not isinstance(selector, Immediate) or not 0 <= selector.integer < SELECTORS[a][k]:
        raise Unsupported(f"{ins.opcode}: the sparsity selector must be 0 to {SELECTORS[a][k] - 1}")
    return Metadata(a, k, selector.integer, ORDERED in ins.modifiers), (d, a, b, c)


@operation("mma.sp", "mma.sp::ordered_metadata")
def mma(ins: Instruction) -> Action:
    """`mma.sp{::ordered_metadata}.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 d, a, b, c, metadata, selector`."""
    form, (type_d, *types) = _checked(ins)
    d, *operands = ins.operands[:4]
    slots = [registers(o, REGISTER.get(t, U32)) for o, t in zip(operands, types, strict=True)]
    ends = np.cumsum([len(s) for s in slots])
    per_register = 32 // NARROW.get(form.kind, 8 * np.dtype(STORAGE.get(form.kind, U32)).itemsize)
    tables = (left(16, form.k // 2, per_register), right(form.k, per_register), sums(16))
    exact = form.kind in INTEGERS

    def run(group: Any, *values: Any) -> tuple[Array, ...]:
        parts = (values[: ends[0]], values[ends[0] : ends[1]], values[ends[1] : ends[2]])
        a, b, c = (
            table.gather(elements(stacked(group, part), kind))[:, 0]
            for table, part, kind in zip(tables, parts, types, strict=True)
        )
        columns = form.places(_valid(group, form, stacked(group, values[ends[2] :])[:, :, 0]))
        chosen = b[np.arange(len(b))[:, None, None], columns].reshape(-1, form.k // 2, 8)  # a matrix for each row of A
        a, rows = a.reshape(-1, 1, form.k // 2), c.reshape(-1, 1, 8)
        if exact:
            result = add_integers(integer_product(a, chosen), rows, ins.has("satfinite"))
        else:
            result = fused(a, chosen, rows, (types[0], types[1]), half=type_d == "f16")
        return unstacked(tables[2].scatter(result.reshape(-1, 1, 16, 8)), type_d)

    inputs = (*sum(slots, ()), (ins.operands[4], U32))
    return Action(run, inputs=inputs, outputs=registers(d, REGISTER.get(type_d, U32)), scope="warp")


def _valid(group: Any, form: Metadata, words: Array) -> Array:
    nibbles = form.nibbles(words)
    wrong = ~np.isin(nibbles, form.codes)
    if wrong.any():
        warp, code = int(np.argwhere(wrong)[0][0]), int(nibbles[wrong][0])
        words_ = ", ".join(f"{c:#06b}" for c in form.codes)
        group.fail("asynchronous", f"sparse metadata {code:#06b}, expected one of {words_}", [32 * warp])
    return nibbles
