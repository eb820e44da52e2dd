"""Bits: logic, shifts, fields, counts, permutations, dot products of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, operation
from kernelmux.emulator.ops.integer import simple
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.operands import SINK, Immediate, Pair
from kernelmux.emulator.ptx.parser import Instruction

I4, I8, U1, U4, U8 = (np.dtype(t) for t in ("i4", "i8", "u1", "u4", "u8"))


def _plain(ins: Instruction, code: str, sources: int, bits: bool = True) -> Action:
    return simple(code, sources, bits)(ins)


@operation("and")
def bit_and(ins: Instruction) -> Action:
    return _plain(ins, "{0} & {1}", 2)


@operation("or")
def bit_or(ins: Instruction) -> Action:
    return _plain(ins, "{0} | {1}", 2)


@operation("xor")
def bit_xor(ins: Instruction) -> Action:
    return _plain(ins, "{0} ^ {1}", 2)


@operation("not")
def bit_not(ins: Instruction) -> Action:
    return _plain(ins, "~{0}", 1)


@operation("cnot")
def logical_not(ins: Instruction) -> Action:
    return _plain(ins, f"({{0}} == 0).astype(U{dtype_of(ins.type).itemsize})", 1, bits=False)


@operation("lop3")
def logic3(ins: Instruction) -> Action:
    """Any function of three bits: the exclusive or of the products in its algebraic normal form.

    `lop3.or.b32 d|p, a, b, c, table, q`: p is whether the result has a bit set, or q (with `.and`: and q).
    """
    target, *sources, table = ins.operands[:5]
    if not isinstance(table, Immediate):
        raise Unsupported(f"{ins.opcode}: the table is no immediate")
    code = _normal_form(table.integer)
    inputs = tuple((o, U4) for o in sources)
    if ins.modifiers == ("b32",):
        return Action(code=code, inputs=inputs, outputs=((target, U4),), pure=True, bits=True)
    symbol = {"or": "|", "and": "&"}[ins.modifiers[0]]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (SINK, target)
    slots = (*inputs, (ins.operands[5], np.dtype(bool)))
    outputs = ((first, U4), (second, np.dtype(bool)))
    return Action(code=f"({code}, (({code}) != 0) {symbol} {{3}})", inputs=slots, outputs=outputs, pure=True)


_SHORT = {
    0xC0: "{0} & {1}",
    0x3F: "~({0} & {1})",
    0xFC: "{0} | {1}",
    0xEA: "({0} & {1}) | {2}",
    0xF8: "{0} | ({1} & {2})",
    0xFE: "{0} | {1} | {2}",
}


def _normal_form(table: int) -> str:
    if table in _SHORT:
        return _SHORT[table]
    coefficients = [table >> i & 1 for i in range(8)]
    for bit in (1, 2, 4):  # Moebius transform
        for i in range(8):
            if i & bit:
                coefficients[i] ^= coefficients[i ^ bit]
    products = [
        " & ".join(name for bit, name in ((4, "{0}"), (2, "{1}"), (1, "{2}")) if i & bit)
        for i in range(1, 8)
        if coefficients[i]
    ]
    code = " ^ ".join(f"({p})" for p in products) or "({0} ^ {0})"
    return f"~({code})" if coefficients[0] else code


@operation("shl")
def shift_left(ins: Instruction) -> Action:
    return _shift(ins, dtype_of(ins.type), "<<")


@operation("shr")
def shift_right(ins: Instruction) -> Action:
    return _shift(ins, dtype_of(ins.type), ">>")


def _shift(ins: Instruction, dtype: np.dtype[Any], direction: str) -> Action:
    """Amounts of the width or more give 0, or all sign bits."""
    target, value, amount = ins.operands
    width = 8 * dtype.itemsize
    if isinstance(amount, Immediate):
        by = amount.value(U4)
        if by >= width and not (dtype.kind == "i" and direction == ">>"):
            return Action(code="{0} ^ {0}", inputs=((value, dtype),), outputs=((target, dtype),), pure=True)
        by = Immediate(str(min(int(by), width - 1)))
        slots = ((value, dtype), (by, dtype))
        code, bits = f"{{0}} {direction} {{1}}", direction == "<<"
        return Action(code=code, inputs=slots, outputs=((target, dtype),), pure=True, bits=bits)
    run = _shifter(dtype, direction)
    return Action(run, ((value, dtype), (amount, U4)), ((target, dtype),), pure=True, exact=True)


def _shifter(dtype: np.dtype[Any], direction: str) -> Any:
    most = np.uint32(8 * dtype.itemsize - 1)
    signed = dtype.kind == "i" and direction == ">>"

    def run(value: Any, amount: Any) -> Any:
        by = np.minimum(amount, most).astype(dtype)
        result = value << by if direction == "<<" else value >> by
        if signed or not np.any(amount > most):
            return result
        return np.where(amount > most, dtype.type(0), result)[()]

    return run


@operation("shf")
def funnel_shift(ins: Instruction) -> Action:
    left, clamp = ins.modifiers[0] == "l", ins.has("clamp")

    def run(low: Any, high: Any, amount: Any) -> Any:
        by = (np.minimum(amount, np.uint32(32)) if clamp else amount & np.uint32(31)).astype(U8)
        whole = (high.astype(U8) << np.uint64(32)) | low
        return ((whole << by) >> np.uint64(32) if left else whole >> by).astype(U4)

    return Action(run, tuple((o, U4) for o in ins.operands[1:]), ((ins.operands[0], U4),), pure=True)


@operation("bfe")
def extract(ins: Instruction) -> Action:
    dtype = dtype_of(ins.type)
    target, value, position, length = ins.operands

    def run(value: Any, position: Any, length: Any) -> Any:
        return _extract(value, _amount(position, dtype), _amount(length, dtype))

    return Action(run, ((value, dtype), (position, U4), (length, U4)), ((target, dtype),), pure=True)


def _amount(number: Any, dtype: np.dtype[Any]) -> Any:
    """A position or length in a field: its low byte; with 64-bit operands all of it (seen on an H200)."""
    return np.minimum(number, np.uint32(64)) if dtype.itemsize == 8 else number & np.uint32(255)


def _extract(value: Any, position: Any, length: Any) -> Any:
    """A field; bits beyond the top are copies of the sign bit (signed) or 0. position, length < 256."""
    dtype, bits = value.dtype, 8 * value.dtype.itemsize
    top = np.minimum(np.uint32(bits), position + length)  # one past the field's last real bit
    span = np.where(position >= bits, 0, top - position)  # real bits in the field
    unsigned = np.asarray(value).view(f"u{dtype.itemsize}").astype(U8)
    field = np.where(span > 0, unsigned >> np.minimum(position, np.uint32(63)).astype(U8), np.uint64(0))
    mask = _ones(span)
    field = field & mask
    if dtype.kind == "i":
        at = np.minimum(np.uint32(bits - 1), position + np.maximum(length, np.uint32(1)) - np.uint32(1)).astype(U8)
        negative = ((unsigned >> at) & np.uint64(1)).astype(bool) & (length > 0)
        field = np.where(negative, field | ~mask, field)
    return field.astype(f"u{dtype.itemsize}").view(dtype)[()]


def _ones(count: Any) -> Any:
    """`count` low bits set, uint64; count is 0 to 64."""
    count = np.asarray(count).astype(U8)
    return np.where(count == 0, np.uint64(0), ~np.uint64(0) >> (np.uint64(64) - np.maximum(count, np.uint64(1))))


@operation("bfi")
def insert(ins: Instruction) -> Action:
    dtype = dtype_of(ins.type)
    target, field, base, position, length = ins.operands

    def run(field: Any, base: Any, position: Any, length: Any) -> Any:
        at = _amount(position, dtype)
        shift = np.minimum(at, np.uint32(63)).astype(U8)
        mask = np.where(at > 63, np.uint64(0), _ones(np.minimum(_amount(length, dtype), np.uint32(64))) << shift)
        return ((base.astype(U8) & ~mask) | ((field.astype(U8) << shift) & mask)).astype(dtype)[()]

    return Action(run, ((field, dtype), (base, dtype), (position, U4), (length, U4)), ((target, dtype),), pure=True)


@operation("bmsk")
def mask(ins: Instruction) -> Action:
    clamp = ins.has("clamp")

    def run(position: Any, length: Any) -> Any:
        if not clamp:
            position, length = position & np.uint32(31), length & np.uint32(31)
        ones = _ones(np.minimum(length, np.uint32(32)))
        return np.where(position > 31, np.uint64(0), ones << np.minimum(position, np.uint32(31)).astype(U8)).astype(U4)[
            ()
        ]

    return Action(run, tuple((o, U4) for o in ins.operands[1:]), ((ins.operands[0], U4),), pure=True)


@operation("szext")
def extend(ins: Instruction) -> Action:
    dtype, clamp = dtype_of(ins.type), ins.has("clamp")

    def run(value: Any, length: Any) -> Any:
        count = np.minimum(length, np.uint32(32)) if clamp else length & np.uint32(31)
        return _extract(value, np.uint32(0), count)

    return Action(run, ((ins.operands[1], dtype), (ins.operands[2], U4)), ((ins.operands[0], dtype),), pure=True)


@operation("popc")
def population(ins: Instruction) -> Action:
    return Action(
        code="np.bitwise_count({0}).astype(U4)",
        inputs=((ins.operands[1], dtype_of(ins.type)),),
        outputs=((ins.operands[0], U4),),
        pure=True,
    )


@operation("clz")
def leading_zeros(ins: Instruction) -> Action:
    dtype = dtype_of(ins.type)
    bits = 8 * dtype.itemsize
    return Action(
        lambda v: (np.uint32(bits) - _length(v)).astype(U4),
        ((ins.operands[1], dtype),),
        ((ins.operands[0], U4),),
        pure=True,
    )


def _length(value: Any) -> Any:
    """Position of the highest set bit plus one, 0 for 0."""
    low = np.frexp((value & value.dtype.type(0xFFFFFFFF)).astype("f8"))[1]
    if value.dtype.itemsize == 8:
        high = np.frexp((value >> np.uint64(32)).astype("f8"))[1]
        low = np.where(high > 0, high + 32, low)[()]
    return low.astype(U4)


@operation("bfind")
def find_highest(ins: Instruction) -> Action:
    """The highest bit that differs from the sign bit; all ones if there is none."""
    dtype = dtype_of(ins.type)
    bits, as_shift = 8 * dtype.itemsize, ins.has("shiftamt")

    def run(value: Any) -> Any:
        unsigned = np.where(value < 0, ~value, value)[()] if dtype.kind == "i" else value
        length = _length(unsigned.astype(f"u{dtype.itemsize}"))
        position = np.uint32(bits) - length if as_shift else length - np.uint32(1)
        return np.where(length == 0, np.uint32(0xFFFFFFFF), position).astype(U4)[()]

    return Action(run, ((ins.operands[1], dtype),), ((ins.operands[0], U4),), pure=True)


@operation("brev")
def reverse(ins: Instruction) -> Action:
    dtype = dtype_of(ins.type)
    table = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], U1)

    def run(value: Any) -> Any:
        swapped = table[np.atleast_1d(value).view(U1)].view(dtype).byteswap()
        return swapped if np.ndim(value) else swapped[0]

    return Action(run, ((ins.operands[1], dtype),), ((ins.operands[0], dtype),), pure=True)


@operation("fns")
def find_nth_set(ins: Instruction) -> Action:
    def run(value: Any, base: Any, offset: Any) -> Any:
        rows = np.broadcast_arrays(*(np.atleast_1d(v) for v in (value, base, offset)))
        positions = np.array([_nth_set(int(m), int(b), int(o)) for m, b, o in zip(*rows, strict=True)], U4)
        return positions if any(np.ndim(v) for v in (value, base, offset)) else positions[0]

    return Action(
        run, ((ins.operands[1], U4), (ins.operands[2], U4), (ins.operands[3], I4)), ((ins.operands[0], U4),), pure=True
    )


def _nth_set(mask: int, base: int, offset: int) -> int:
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    positions = range(base, 32) if offset > 0 else range(base, -1, -1)
    hits = [p for p in positions if mask >> p & 1]
    return hits[abs(offset) - 1] if len(hits) >= abs(offset) else 0xFFFFFFFF


@operation("prmt")
def permute(ins: Instruction) -> Action:
    mode = next((m for m in ins.modifiers if m != "b32"), None)
    return Action(_permuter(mode), tuple((o, U4) for o in ins.operands[1:]), ((ins.operands[0], U4),), pure=True)


_MODES = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def _permuter(mode: str | None) -> Any:
    """Four bytes chosen from the eight of two registers; bit 3 of a choice copies the sign bit instead."""

    def run(low: Any, high: Any, choice: Any) -> Any:
        whole = low.astype(U8) | (high.astype(U8) << np.uint64(32))
        result = np.uint32(0)
        for i in range(4):
            pick = _mode_pick(mode, choice, i) if mode else (choice >> np.uint32(4 * i)) & np.uint32(15)
            byte = ((whole >> (np.uint64(8) * (pick & np.uint32(7)).astype(U8))) & np.uint64(255)).astype(U4)
            if np.any(pick & np.uint32(8)):
                sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
                byte = np.where(pick & np.uint32(8), sign, byte)[()]
            result = result | (byte << np.uint32(8 * i))
        return result

    return run


def _mode_pick(mode: str, choice: Any, i: int) -> Any:
    table = np.array([row[i] for row in _MODES[mode]], U4)
    return table[choice & np.uint32(3)]


@operation("dp4a")
def dot4(ins: Instruction) -> Action:
    return _dot(ins, 4, lambda b, i: b[:, i])


@operation("dp2a")
def dot2(ins: Instruction) -> Action:
    upper = 2 if ins.has("hi") else 0
    return _dot(ins, 2, lambda b, i: b[:, upper + i])


def _dot(ins: Instruction, count: int, column: Any) -> Action:
    """Signed or unsigned parts of a times bytes of b, plus c."""
    kinds = ["u" if t.startswith("u") else "i" for t in ins.modifiers if t in ("u32", "s32")]
    part_a = np.dtype(f"{kinds[0]}{4 // count}")
    part_b = np.dtype(f"{kinds[1]}1")

    def run(a: Any, b: Any, c: Any) -> Any:
        rows_a = np.atleast_1d(a).view(part_a).reshape(-1, count).astype(I8)
        rows_b = np.atleast_1d(b).view(part_b).reshape(-1, 4).astype(I8)
        total = np.sum([rows_a[:, i] * column(rows_b, i) for i in range(count)], axis=0).astype(U4)
        return total + c if any(np.ndim(v) for v in (a, b, c)) else total[0] + c

    return Action(run, tuple((o, U4) for o in ins.operands[1:]), ((ins.operands[0], U4),), pure=True)
