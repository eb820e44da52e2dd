"""mma.sync in all dense shapes: which lane holds which element, as tables; all warps of a group are one batched product.

A lane is 4 * g + t, g = 0..7 and t = 0..3. A register holds E elements. Fragments of a warp (PTX ISA, "Matrix fragments
for mma"), H = M / 8 halves:
    A [M, K]   register (k_chunk, half): row g + 8 * half, columns (4 * k_chunk + t) * E ...
    B [K, 8]   register (k_chunk):       rows (4 * k_chunk + t) * E ..., column g
    C [M, 8]   element i of the lane:    row g + 8 * (i / 2), column 2 * t + i % 2
m8n8k4 of f16 is another: each quad of lanes makes a product of its own with the quad 16 lanes above.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.arithmetic.matrix_elements import STORAGE, from_float, to_float
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, not_emulated, operation, registers
from kernelmux.emulator.ops.tensor_core import add_integers, shape_of, transposed
from kernelmux.emulator.ops.tensor_core import mma as m16n8
from kernelmux.emulator.ptx.parser import Instruction

Array = NDArray[Any]
U32 = np.uint32
LANE = np.arange(32)
G, T = LANE[:, None] // 4, LANE[:, None] % 4  # [32, 1]
NARROW = {"s4": 4, "u4": 4, "b1": 1}  # bits of elements that are no whole bytes
REGISTER = {"f64": np.float64, "f32": np.float32, "s32": np.int32}  # of accumulators; f16 and multiplicands: U32
# Shapes M, N, K by the type of A. Integers may be signed and unsigned, tf32 and 8-bit floats go the way of m16n8.
SHAPES = {
    "f16": {(8, 8, 4), (16, 8, 8), (16, 8, 16)},
    "bf16": {(16, 8, 8), (16, 8, 16)},
    "tf32": {(16, 8, 4), (16, 8, 8)},
    "e4m3": {(16, 8, 16), (16, 8, 32)},
    "e5m2": {(16, 8, 16), (16, 8, 32)},
    "f64": {(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)},
    "s8": {(8, 8, 16), (16, 8, 16), (16, 8, 32)},
    "s4": {(8, 8, 32), (16, 8, 32), (16, 8, 64)},
    "b1": {(8, 8, 128), (16, 8, 128), (16, 8, 256)},
}
SHAPES |= {"u8": SHAPES["s8"], "u4": SHAPES["s4"]}


@dataclass(frozen=True)
class FragmentTable:
    """Where the elements of every lane, `[32, elements]`, are in a batch of matrices of this shape."""

    batch: Array
    row: Array
    column: Array
    shape: tuple[int, int, int]

    def gather(self, elements: Array) -> Array:
        """Matrices `[warps, batch, rows, columns]` from elements `[warps, 32, elements]`."""
        matrices = np.empty((len(elements), *self.shape), elements.dtype)
        matrices[:, self.batch, self.row, self.column] = elements
        return matrices

    def scatter(self, matrices: Array) -> Array:
        """The inverse of `gather`."""
        result: Array = matrices[:, self.batch, self.row, self.column]
        return result


def _table(row: Any, column: Any, shape: tuple[int, int, int], batch: Any = 0) -> FragmentTable:
    batch, row, column = np.broadcast_arrays(np.asarray(batch), row, column)
    return FragmentTable(batch, row, column, shape)


@cache
def left(m: int, k: int, per_register: int) -> FragmentTable:
    """A of shape [m, k]."""
    halves = m // 8
    register, inner = np.divmod(np.arange(m * k // 32), per_register)
    return _table(G + 8 * (register % halves), (4 * (register // halves) + T) * per_register + inner, (1, m, k))


@cache
def right(k: int, per_register: int) -> FragmentTable:
    """B of shape [k, 8]."""
    register, inner = np.divmod(np.arange(k // 4), per_register)
    return _table((4 * register + T) * per_register + inner, G, (1, k, 8))


@cache
def sums(m: int) -> FragmentTable:
    """C and D of shape [m, 8]."""
    element = np.arange(m // 4)
    return _table(G + 8 * (element // 2), 2 * T + element % 2, (1, m, 8))


@cache
def quads(part: str, by_row: bool, kind: str) -> FragmentTable:
    """Fragments of m8n8k4 of f16: four products, each of a quad of lanes below 16 and the one 16 lanes above."""
    product, place, high = LANE[:, None] % 16 // 4, LANE[:, None] % 4, LANE[:, None] // 16
    along, across = np.arange(4), place + 4 * high
    if part == "a":
        return (
            _table(across, along, (4, 8, 4), product) if by_row else _table(along + 4 * high, place, (4, 8, 4), product)
        )
    if part == "b":
        return (
            _table(place, along + 4 * high, (4, 4, 8), product) if by_row else _table(along, across, (4, 4, 8), product)
        )
    i = np.arange(8)
    if kind == "f16":
        return _table(across, i, (4, 8, 8), product)
    return _table((LANE[:, None] & 1) + (i & 2) + 4 * high, (i & 4) + (LANE[:, None] & 2) + (i & 1), (4, 8, 8), product)


# --- registers and elements -----------------------------------------------------------------------------------


def elements(words: Array, kind: str) -> Array:
    """Values of registers `[warps, 32, registers]` as `[warps, 32, elements]`: float64 for f64 and integers."""
    if kind in REGISTER:
        return words
    if kind in NARROW:
        return narrow_elements(words, kind)
    values: Array = to_float(np.ascontiguousarray(words).view(STORAGE[kind]), kind)
    return values


def narrow_elements(words: Array, kind: str) -> Array:
    """Elements of less than a byte, the lowest bits first."""
    bits = NARROW[kind]
    shifts = np.arange(0, 32, bits, dtype=U32)
    fields = (words[..., None] >> shifts & U32((1 << bits) - 1)).reshape(*words.shape[:2], -1).astype(np.int8)
    signed: Array = (fields ^ np.int8(8)) - np.int8(8) if kind == "s4" else fields
    return signed


def stacked(group: Any, values: tuple[Any, ...]) -> Array:
    """Registers of all lanes as `[warps, 32, registers]`."""
    return np.stack([group.full(v) for v in values], axis=-1).reshape(-1, 32, len(values))


def unstacked(values: Array, kind: str) -> tuple[Array, ...]:
    """Elements of D `[warps, 32, elements]` as registers of every lane."""
    if kind == "f16":
        values = np.ascontiguousarray(from_float(values, "f16")).view(U32)
    return tuple(np.ascontiguousarray(values.reshape(-1, values.shape[2]).T))


# --- the product ----------------------------------------------------------------------------------------------


def multiplied(a: Array, b: Array, kind: str, bits: str) -> Array:
    """`a [.., M, K]` times `b [.., K, N]`; integers exactly, in float64. bits: "xor" or "and" for single bits."""
    if kind in ("f64", "f16"):
        result: Array = np.matmul(a, b)
        return result
    a, b = a.astype(np.float64), b.astype(np.float64)
    both: Array = np.matmul(a, b)
    return both if bits != "xor" else a.sum(-1, keepdims=True) + b.sum(-2, keepdims=True) - 2 * both


@dataclass(frozen=True)
class Form:
    """What the modifiers of an mma.sync say."""

    shape: tuple[int, int, int]
    types: tuple[str, str, str, str]  # of D, A, B, C
    rows: tuple[bool, bool]  # whether A and B are row-major
    bits: str
    saturate: bool

    @staticmethod
    def of(ins: Instruction) -> Form:
        """The form of an instruction; `Unsupported` for one that is not in the ISA, or that is not emulated."""
        words = [m for m in ins.modifiers if m not in ("satfinite", "popc", "xor", "and")]
        shape, types = shape_of(ins), (words[-4], words[-3], words[-2], words[-1])
        bits = next((m for m in ins.modifiers if m in ("xor", "and")), "")
        layouts = [m for m in ins.modifiers if m in ("row", "col")]
        form = Form(shape, types, (layouts[0] == "row", layouts[1] == "row"), bits, ins.has("satfinite"))
        if problem := form._problem():
            raise Unsupported(f"{ins.opcode}: {problem}")
        return form

    def _problem(self) -> str | None:
        d, a, b, c = self.types
        if a not in SHAPES or self.shape not in SHAPES[a]:
            return f"no such product; elements {', '.join(SHAPES)} are emulated in the shapes that the ISA has for them"
        if a != b and not {a, b} <= {"s8", "u8"} and not {a, b} <= {"s4", "u4"} and not {a, b} <= {"e4m3", "e5m2"}:
            return f"A of {a} with B of {b}"
        results = {"f64": ("f64",), "f16": ("f16", "f32"), "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32")}
        allowed = results.get(a, ("f32",) if a in ("bf16", "tf32") else ("s32",))
        if d not in allowed or c not in allowed or (c != d and self.shape != (8, 8, 4)):
            return f"sums of {c} and {d}"
        if self.rows != (True, False) and (self.shape, a) != ((8, 8, 4), "f16"):
            return "A is row-major and B column-major"
        return "xor or and of single bits is missing" if (a == "b1") != bool(self.bits) else None

    @property
    def tables(self) -> tuple[FragmentTable, FragmentTable, FragmentTable, FragmentTable]:
        """Of A, B, C and D."""
        (m, _, k), (d, a, b, c) = self.shape, self.types
        if (self.shape, a) == ((8, 8, 4), "f16"):
            return quads("a", self.rows[0], a), quads("b", self.rows[1], b), quads("c", True, c), quads("c", True, d)
        per_register = 1 if a == "f64" else 32 // NARROW.get(a, 8 * np.dtype(STORAGE.get(a, U32)).itemsize)
        return left(m, k, per_register), right(k, per_register), sums(m), sums(m)


@operation("mma.sync")
def mma(ins: Instruction) -> Action:
    """`mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 d, a, b, c`: D = A * B + C of one warp."""
    form = Form.of(ins)
    if form.shape[0] == 16 and form.types[1] in STORAGE:
        return m16n8(ins)
    d, *operands = ins.operands[:4]
    type_d, *types = form.types
    slots = [registers(o, REGISTER.get(t, U32)) for o, t in zip(operands, types, strict=True)]
    ends = np.cumsum([len(s) for s in slots])
    table_a, table_b, table_c, table_d = form.tables

    def run(group: Any, *values: Any) -> tuple[Array, ...]:
        parts = (values[: ends[0]], values[ends[0] : ends[1]], values[ends[1] :])
        a, b, c = (elements(stacked(group, p), t) for p, t in zip(parts, types, strict=True))
        total = multiplied(table_a.gather(a), table_b.gather(b), types[0], form.bits)
        c = table_c.gather(c)
        result = add_integers(total, c, form.saturate) if type_d == "s32" else total + c
        return unstacked(table_d.scatter(result), type_d)

    return Action(run, inputs=sum(slots, ()), outputs=registers(d, REGISTER.get(type_d, U32)), scope="warp")


@operation("movmatrix")
def move_matrix(ins: Instruction) -> Action:
    """`movmatrix.sync.aligned.m8n8.trans.b16 d, a`: the transposed matrix, in the fragments of ldmatrix."""
    target, source = ins.operands
    if ins.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise not_emulated(ins)
    return Action(
        lambda group, words: transposed(group.full(words).reshape(-1, 8, 4)).reshape(-1),
        inputs=((source, U32),),
        outputs=((target, U32),),
        scope="warp",
    )
