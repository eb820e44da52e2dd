"""Warp-level matrix instructions: mma.sync of shape m16n8, ldmatrix, stmatrix; other shapes are in mma.py.

All warps of a group are one batched product.

A lane is 4 * g + t, g = 0..7 and t = 0..3 (PTX ISA, "Matrix fragments for mma"). A 32-bit register holds E = 32 / bits
elements. Fragments of a warp:
    A [16, K]   register (k_chunk, half): row g + 8 * half, columns (4 * k_chunk + t) * E ...
    B [K, 8]    register (k_chunk):       rows (4 * k_chunk + t) * E ..., column g
    C [16, 8]   row g + 8 * half, columns 2 * t, 2 * t + 1
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.arithmetic.fused_dot import fused_dot
from kernelmux.emulator.arithmetic.matrix_elements import STORAGE, from_float, to_float
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address, operation, registers
from kernelmux.emulator.ptx.parser import Instruction

Array = NDArray[Any]
U32, F32, S32 = np.uint32, np.float32, np.int32
INTEGERS = ("s8", "u8")
FLOAT8 = ("e4m3", "e5m2")
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")


def shape_of(ins: Instruction) -> tuple[int, int, int]:
    """M, N, K of an instruction, from its modifier `.m16n8k16`."""
    match = next((m for m in map(_SHAPE.match, ins.modifiers) if m), None)
    if match is None:
        raise Unsupported(f"no matrix shape in {ins.opcode}")
    return int(match[1]), int(match[2]), int(match[3])


def integer_product(a: Array, b: Array) -> Array:
    """`a [.., M, K] @ b [.., K, N]` of integers, exact, in float64."""
    result: Array = np.matmul(a.astype(np.float64), b.astype(np.float64))
    return result


def fused(a: Array, b: Array, c: Array, kinds: tuple[str, str], half: bool) -> Array:
    """`a [.., M, K] @ b [.., K, N] + c` as mma.sync on an H200, which has no such instruction for 8-bit floats.

    There, elements 0 and 1 of each word are converted to fp16 and multiplied, then elements 2 and 3; C is added last.
    """
    if kinds[0] not in FLOAT8:
        return fused_dot(a, b, c, kinds, half=half)
    total = np.zeros_like(c)
    for first in (0, 2):
        chosen = [k for k in range(a.shape[2]) if k % 4 in (first, first + 1)]
        total = fused_dot(a[:, :, chosen], b[:, chosen], total, ("f16", "f16"), half=half).astype(F32)
    return total + c


def add_integers(total: Array, c: Array, saturate: bool) -> Array:
    """`total + c` in 32 bits: wrapped round, or clamped for `.satfinite`."""
    exact = total.astype(np.int64) + c
    return (np.clip(exact, -(2**31), 2**31 - 1) if saturate else exact).astype(S32)


def columns(group: Any, values: tuple[Any, ...]) -> Array:
    """Registers of all lanes as `[registers, warps, g, t]`."""
    return np.stack([group.full(v) for v in values]).reshape(len(values), -1, 8, 4)


def unwrapped(outputs: tuple[Array, ...]) -> Any:
    """What an action returns: a value alone, several as a tuple."""
    return outputs[0] if len(outputs) == 1 else outputs


def elements(words: Array, kind: str) -> Any:
    """The elements of 32-bit words as floats; the last axis grows by the elements of a word."""
    return to_float(np.ascontiguousarray(words).view(STORAGE[kind]), kind)


def fragment_a(stacked: Array, kind: str) -> Any:
    """A as `[warps, 16, K]` from `[registers, warps, g, t]`."""
    split = stacked.reshape(-1, 2, *stacked.shape[1:])  # [k_chunk, half, warps, g, t]
    return elements(split.transpose(2, 1, 3, 0, 4).reshape(stacked.shape[1], 16, -1), kind)


def fragment_b(stacked: Array, kind: str) -> Any:
    """B as `[warps, K, 8]` from `[registers, warps, g, t]`."""
    return elements(stacked.transpose(1, 2, 0, 3).reshape(stacked.shape[1], 8, -1), kind).swapaxes(1, 2)


def accumulator(stacked: Array) -> Array:
    """C as `[warps, 16, 8]` from `[4 registers, warps, g, t]`."""
    split = stacked.reshape(2, 2, -1, 8, 4)  # [half, column, warps, g, t]
    return split.transpose(2, 0, 3, 4, 1).reshape(-1, 16, 8)


def to_registers(c: Array) -> tuple[Array, ...]:
    """C `[warps, 16, 8]` as the four registers of every lane: the inverse of `accumulator`."""
    split = c.reshape(-1, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3)  # [half, column, warps, g, t]
    return tuple(split.reshape(4, -1))


def mma(ins: Instruction) -> Action:
    """`mma.sync.aligned.m16n8k*.row.col.d.a.b.c d, a, b, c`: D = A * B + C of one warp."""
    type_d, type_a, type_b, type_c = ins.modifiers[-4:]
    m, n, _ = shape_of(ins)
    if (m, n) != (16, 8) or type_a not in STORAGE or type_b not in STORAGE or type_d != type_c:
        raise Unsupported(f"{ins.opcode}: shapes m16n8, elements {', '.join(STORAGE)} are emulated")
    d, a, b, c = ins.operands[:4]
    scalar = {"f32": F32, "s32": S32, "f16": U32}[type_d]
    inputs = (registers(a, U32), registers(b, U32), registers(c, scalar))
    cut_a, cut_b = len(inputs[0]), len(inputs[0]) + len(inputs[1])

    def run(group: Any, *values: Any) -> tuple[Array, ...]:
        left = fragment_a(columns(group, values[:cut_a]), type_a)
        right = fragment_b(columns(group, values[cut_a:cut_b]), type_b)
        stacked = columns(group, values[cut_b:])
        if type_d == "s32":
            total = add_integers(integer_product(left, right), accumulator(stacked), ins.has("satfinite"))
            return to_registers(total)
        if type_d == "f32":
            return to_registers(fused(left, right, accumulator(stacked), (type_a, type_b), half=False))
        return from_halves(fused(left, right, halves_of(stacked), (type_a, type_b), half=True))

    return Action(run, inputs=sum(inputs, ()), outputs=registers(d, scalar), scope="warp")


def halves_of(stacked: Array) -> Array:
    """C `[warps, 16, 8]` from `[2 registers, warps, g, t]` of fp16 pairs."""
    c: Array = elements(stacked.swapaxes(0, 1), "f16").reshape(-1, 16, 8)
    return c


def from_halves(total: Array) -> tuple[Array, ...]:
    """C `[warps, 16, 8]` as the two registers of every lane: the inverse of `halves_of`."""
    split = from_float(total, "f16").reshape(-1, 2, 8, 8).transpose(1, 0, 2, 3)  # [half, warps, g, column]
    return tuple(np.ascontiguousarray(split).view(U32).reshape(2, -1))


# --- ldmatrix, stmatrix ---------------------------------------------------------------------------------------


def _matrices(ins: Instruction) -> int:
    """How many 8x8 matrices of 16-bit elements an instruction moves.

    Lane 8 * i + r has the address of row r of matrix i.
    """
    if not (ins.has("m8n8") and ins.has("b16")):
        raise Unsupported(f"{ins.opcode}: matrices of shape m8n8 with b16 elements are emulated")
    return next((int(modifier[1]) for modifier in ins.modifiers if modifier in ("x1", "x2", "x4")), 1)


def transposed(rows: Array) -> Array:
    """8x8 matrices of 16-bit elements, `[.., 8, 4]` as 32-bit words, transposed."""
    halves = np.ascontiguousarray(rows).view(np.uint16).swapaxes(-1, -2)
    return np.ascontiguousarray(halves).view(U32)


@operation("ldmatrix")
def ldmatrix(ins: Instruction) -> Action:
    """`ldmatrix.sync.aligned.m8n8.x4{.trans}.shared.b16 {r, ..}, [p]`: lane (g, t) gets columns 2t, 2t + 1 of row g."""
    destination, pointer = ins.operands
    count, transpose = _matrices(ins), ins.has("trans")

    def run(group: Any, where: Array) -> Any:
        rows = group.load(ins.space, group.full(where), U32, count=4, mask=group.lane < 8 * count)
        rows = rows.reshape(-1, 4, 8, 4)[:, :count].swapaxes(0, 1)  # [matrices, warps, 8 rows, 4 words]
        return unwrapped(tuple((transposed(rows) if transpose else rows).reshape(count, -1)))

    return Action(run, inputs=(address(pointer),), outputs=registers(destination, U32), scope="warp")


@operation("stmatrix")
def stmatrix(ins: Instruction) -> Action:
    """`stmatrix.sync.aligned.m8n8.x4{.trans}.shared.b16 [p], {r, ..}`: the inverse of ldmatrix."""
    pointer, source = ins.operands
    count, transpose = _matrices(ins), ins.has("trans")

    def run(group: Any, where: Array, *values: Array) -> None:
        rows = np.stack([group.full(v) for v in values]).reshape(count, -1, 8, 4)  # [matrices, warps, 8 rows, 4 words]
        words = np.zeros((rows.shape[1], 4, 8, 4), U32)
        words[:, :count] = (transposed(rows) if transpose else rows).swapaxes(0, 1)
        group.store(ins.space, where, words.reshape(-1, 4), mask=group.lane < 8 * count)

    return Action(run, inputs=(address(pointer), *registers(source, U32)), scope="warp")
