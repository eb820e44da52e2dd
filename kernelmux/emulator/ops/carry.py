"""Arithmetic with a carry: add.cc, addc, sub.cc, subc, mad.cc, madc; the carry is one more register, `%cc`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmux.emulator.ops import Action, operation
from kernelmux.emulator.ops.integer import high_product
from kernelmux.emulator.ptx.dtypes import bits_of, dtype_of
from kernelmux.emulator.ptx.operands import Register
from kernelmux.emulator.ptx.parser import Instruction

CARRY = Register("%cc", "pred")


def with_carry(ins: Instruction, run: Callable[..., tuple[Any, Any]], takes: bool) -> Action:
    """run(operands…, carry) -> (result, carry); unsigned bits."""
    dtype = bits_of(dtype_of(ins.type))
    inputs = tuple((o, dtype) for o in ins.operands[1:]) + (((CARRY, np.dtype(bool)),) if takes else ())
    outputs = ((ins.operands[0], dtype), (CARRY, np.dtype(bool)))
    if ins.has("cc"):
        return Action(run, inputs, outputs, pure=True)
    return Action(lambda *values: run(*values)[0], inputs, outputs[:1], pure=True)


def add(a: Any, b: Any, carry: Any = np.False_) -> tuple[Any, Any]:
    """The sum and whether it overflowed."""
    total = a + b
    result = total + carry.astype(a.dtype)
    return result, (total < a) | (result < total)


def subtract(a: Any, b: Any, borrow: Any = np.False_) -> tuple[Any, Any]:
    """The difference and whether something was borrowed."""
    difference = a - b
    result = difference - borrow.astype(a.dtype)
    return result, (a < b) | (difference < result)


@operation("add.cc")
def add_cc(ins: Instruction) -> Action:
    return with_carry(ins, add, takes=False)


@operation("addc")
def addc(ins: Instruction) -> Action:
    return with_carry(ins, add, takes=True)


@operation("sub.cc")
def sub_cc(ins: Instruction) -> Action:
    return with_carry(ins, subtract, takes=False)


@operation("subc")
def subc(ins: Instruction) -> Action:
    return with_carry(ins, subtract, takes=True)


@operation("mad.lo.cc", "mad.hi.cc")
def mad_cc(ins: Instruction) -> Action:
    return with_carry(ins, _multiply_add(ins), takes=False)


@operation("madc")
def madc(ins: Instruction) -> Action:
    return with_carry(ins, _multiply_add(ins), takes=True)


def _multiply_add(ins: Instruction) -> Callable[..., tuple[Any, Any]]:
    signed = dtype_of(ins.type)

    def run(a: Any, b: Any, c: Any, carry: Any = np.False_) -> tuple[Any, Any]:
        product = high_product(a.view(signed), b.view(signed)).view(a.dtype) if ins.has("hi") else a * b
        return add(product, c, carry)

    return run
