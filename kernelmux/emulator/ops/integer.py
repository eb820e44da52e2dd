"""Integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmux.emulator.ops import Action
from kernelmux.emulator.ops.dispatch import by_type
from kernelmux.emulator.ops.pairs import packed
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.operands import Immediate, Operand
from kernelmux.emulator.ptx.parser import Instruction

I4, I8, U4, U8 = (np.dtype(t) for t in ("i4", "i8", "u4", "u8"))
INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64", "b32", "b64", "b16")


def simple(code: str, sources: int, bits: bool = False) -> Callable[[Instruction], Action]:
    """A builder of `code` over operands of the instruction's type; bits: the same for signed and unsigned ones."""

    def build(ins: Instruction) -> Action:
        dtype = dtype_of(ins.type)
        inputs = tuple((o, dtype) for o in ins.operands[1 : 1 + sources])
        return Action(code=code, inputs=inputs, outputs=((ins.operands[0], dtype),), pure=True, bits=bits)

    return build


def function(run: Callable[..., Any], sources: int) -> Callable[[Instruction], Action]:
    """A builder of a function over operands of the instruction's type."""

    def build(ins: Instruction) -> Action:
        dtype = dtype_of(ins.type)
        inputs = tuple((o, dtype) for o in ins.operands[1 : 1 + sources])
        return Action(run, inputs, ((ins.operands[0], dtype),), pure=True, exact=True)

    return build


@by_type("add", *INTEGERS)
def add(ins: Instruction) -> Action:
    if ins.has("sat"):
        return function(lambda a, b: np.clip(a.astype(I8) + b, -(2**31), 2**31 - 1).astype(I4), 2)(ins)
    return simple("{0} + {1}", 2, bits=True)(ins)


@by_type("sub", *INTEGERS)
def subtract(ins: Instruction) -> Action:
    if ins.has("sat"):
        return function(lambda a, b: np.clip(a.astype(I8) - b, -(2**31), 2**31 - 1).astype(I4), 2)(ins)
    return simple("{0} - {1}", 2, bits=True)(ins)


@by_type("mul", *INTEGERS)
def multiply(ins: Instruction) -> Action:
    dtype = dtype_of(ins.type)
    target, a, b = ins.operands
    if ins.has("wide"):
        wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
        slots, code = _widened((a, b), dtype, wide)
        return Action(code=" * ".join(code), inputs=slots, outputs=((target, wide),), pure=True)
    return function(high_product, 2)(ins) if ins.has("hi") else simple("{0} * {1}", 2, bits=True)(ins)


@by_type("mad", *INTEGERS)
def multiply_add(ins: Instruction) -> Action:
    dtype = dtype_of(ins.type)
    target, a, b, c = ins.operands
    if ins.has("wide"):
        wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
        slots, code = _widened((a, b), dtype, wide)
        return Action(
            code=f"{' * '.join(code)} + {{2}}", inputs=(*slots, (c, wide)), outputs=((target, wide),), pure=True
        )
    if ins.has("hi"):
        add = _saturating if ins.has("sat") else np.add
        return function(lambda a, b, c: add(high_product(a, b), c), 3)(ins)
    return simple("{0} * {1} + {2}", 3, bits=True)(ins)


def _saturating(a: Any, b: Any) -> Any:
    """The sum of 32-bit integers, clamped to their range."""
    limits = np.iinfo(a.dtype)
    return np.clip(a.astype(I8) + b, limits.min, limits.max).astype(a.dtype)[()]


def _widened(
    operands: tuple[Operand, ...], narrow: np.dtype[Any], wide: np.dtype[Any]
) -> tuple[tuple[Any, ...], list[str]]:
    """Slots and expressions of the operands as `wide`; numbers are widened here, once."""
    slots: list[tuple[Any, ...]] = []
    code: list[str] = []
    for i, operand in enumerate(operands):
        if isinstance(operand, Immediate):
            slots.append((Immediate(str(int(operand.value(narrow)))), wide))
            code.append(f"{{{i}}}")
        else:
            slots.append((operand, narrow))
            code.append(f"{{{i}}}.astype({wide.kind.upper()}{wide.itemsize})")
    return tuple(slots), code


def high_product(a: Any, b: Any) -> Any:
    """The upper half of the double-width product."""
    dtype = a.dtype
    if dtype.itemsize < 8:
        wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(8 * dtype.itemsize)).astype(dtype)
    high = _high_unsigned(a.view(U8), b.view(U8))
    if dtype.kind == "i":
        high = high - np.where(a < 0, b, 0).astype(I8).view(U8) - np.where(b < 0, a, 0).astype(I8).view(U8)
    return high.view(dtype)[()]


def _high_unsigned(a: Any, b: Any) -> Any:
    """Schoolbook on 32-bit halves."""
    low, s = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> s, b & low, b >> s
    middle = a1 * b0 + ((a0 * b0) >> s)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> s) + (other >> s)


@by_type("mul24", "u32", "s32")
def multiply24(ins: Instruction) -> Action:
    return function(lambda a, b: _product24(a, b, ins.has("hi")), 2)(ins)


@by_type("mad24", "u32", "s32")
def multiply_add24(ins: Instruction) -> Action:
    add = _saturating if ins.has("sat") else np.add
    return function(lambda a, b, c: add(_product24(a, b, ins.has("hi")), c), 3)(ins)


def _product24(a: Any, b: Any, high: bool) -> Any:
    """The low 24 bits of both multiplied: bits 0 to 31 of the 48-bit product, or 16 to 47."""
    dtype, eight = a.dtype, a.dtype.type(8)
    wide = np.dtype(f"{dtype.kind}8")
    product = ((a << eight) >> eight).astype(wide) * ((b << eight) >> eight).astype(wide)
    return (product >> wide.type(16) if high else product).astype(dtype)


def quotient(a: Any, b: Any) -> Any:
    """Division towards zero; by zero gives all ones (seen on an H200)."""
    zero = b == 0
    divisor = np.where(zero, b.dtype.type(1), b) if np.any(zero) else b
    if a.dtype.kind == "u":
        result = a // divisor
    else:
        result = a // divisor
        rest = a - result * divisor
        result = result + ((rest != 0) & ((a < 0) != (divisor < 0))).astype(a.dtype)
    return np.where(zero, ~b.dtype.type(0), result)[()] if np.any(zero) else result


@by_type("div", *INTEGERS)
def divide(ins: Instruction) -> Action:
    return function(quotient, 2)(ins)


@by_type("rem", *INTEGERS)
def remainder(ins: Instruction) -> Action:
    """By zero: all ones (seen on an H200; the ISA leaves it open)."""
    return function(lambda a, b: np.where(b == 0, ~a.dtype.type(0), a - quotient(a, b) * b)[()].astype(a.dtype), 2)(ins)


@by_type("abs", "s16", "s32", "s64")
def absolute(ins: Instruction) -> Action:
    return simple("np.abs({0})", 1)(ins)


@by_type("neg", "s16", "s32", "s64")
def negate(ins: Instruction) -> Action:
    return simple("-{0}", 1)(ins)


@by_type("min", *INTEGERS)
def minimum(ins: Instruction) -> Action:
    return _relu(ins, "np.minimum({0}, {1})")


@by_type("max", *INTEGERS)
def maximum(ins: Instruction) -> Action:
    return _relu(ins, "np.maximum({0}, {1})")


def _relu(ins: Instruction, code: str) -> Action:
    return simple(f"np.maximum({code}, I4.type(0))" if ins.has("relu") else code, 2)(ins)


@by_type("sad", *INTEGERS)
def sum_of_differences(ins: Instruction) -> Action:
    return function(lambda a, b, c: np.where(a < b, b - a, a - b)[()] + c, 3)(ins)


@by_type("add", "u16x2", "s16x2")
def add_pairs(ins: Instruction) -> Action:
    return _pairs(ins, lambda a, b: a + b)


@by_type("min", "u16x2", "s16x2")
def minimum_pairs(ins: Instruction) -> Action:
    return _pairs(ins, np.minimum)


@by_type("max", "u16x2", "s16x2")
def maximum_pairs(ins: Instruction) -> Action:
    return _pairs(ins, np.maximum)


def _pairs(ins: Instruction, run: Callable[[Any, Any], Any]) -> Action:
    half = np.dtype("u2" if ins.type == "u16x2" else "i2")
    if ins.has("relu"):
        return _pairs_of(ins, half, lambda a, b: np.maximum(run(a, b), half.type(0)))
    return _pairs_of(ins, half, run)


def _pairs_of(ins: Instruction, half: np.dtype[Any], run: Callable[[Any, Any], Any]) -> Action:
    return Action(packed(half, run), tuple((o, U4) for o in ins.operands[1:3]), ((ins.operands[0], U4),), pure=True)
