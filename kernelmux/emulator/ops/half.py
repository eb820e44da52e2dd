"""Arithmetic in float16 and bfloat16, single and packed: computed in float32 or float64, rounded once.

float32 has enough bits that rounding a sum, product or quotient of 16-bit floats twice gives the same as once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic import mufu_units as units
from kernelmux.emulator.arithmetic.directed_rounding import vanishes
from kernelmux.emulator.arithmetic.floats import NAN, double_to_bf16, fma_double, from_bf16, to_bf16, to_f16
from kernelmux.emulator.arithmetic.mufu_forms import shortened
from kernelmux.emulator.ops import Action
from kernelmux.emulator.ops.dispatch import by_type
from kernelmux.emulator.ops.floating import Run, extreme, larger, saturate, smaller
from kernelmux.emulator.ops.pairs import packed
from kernelmux.emulator.ptx.operands import Immediate
from kernelmux.emulator.ptx.parser import Instruction

F2, F4, F8, U2, U4 = (np.dtype(t) for t in ("f2", "f4", "f8", "u2", "u4"))
HALVES = ("f16", "f16x2", "bf16", "bf16x2")
LEAST = F4.type(2.0**-14)  # normal float16


def _action(ins: Instruction, run: Run, sources: int) -> Action:
    """`run` over float32 values (or float64 results) of the operands."""
    brain = ins.type.startswith("bf")
    half = U2 if brain else F2
    rounded = _brain(run, ins) if brain else _ieee(run, ins)
    register = half if not ins.type.endswith("x2") else U4
    function = packed(half, rounded) if ins.type.endswith("x2") else rounded
    return Action(
        function, tuple((o, register) for o in ins.operands[1 : 1 + sources]), ((ins.operands[0], register),), pure=True
    )


def _clamped(ins: Instruction, value: Any) -> Any:
    if ins.has("sat"):
        return saturate(value)
    if ins.has("relu"):
        return np.where(np.isnan(value), NAN, np.maximum(value, value.dtype.type(0)))
    return value


def _ieee(run: Run, ins: Instruction) -> Run:
    if ins.has("ftz"):
        run = _flushed(run)
    return lambda *values: to_f16(np.asarray(_clamped(ins, run(*(v.astype(F4) for v in values)))))[()]


def _flushed(run: Run) -> Run:
    """.ftz: float16 subnormals are zeros."""

    def flushing(*values: Any) -> Any:
        result = run(*(np.where(np.abs(v) < LEAST, np.copysign(F4.type(0), v), v) for v in values))
        small = np.abs(result) < LEAST
        if np.any(small):
            small = small & vanishes(result.astype(F8), "rn", F2)
        return np.where(small, np.copysign(result.dtype.type(0), result), result)

    return flushing


def _brain(run: Run, ins: Instruction) -> Run:
    def rounded(*values: Any) -> Any:
        result = np.asarray(_clamped(ins, run(*(from_bf16(v) for v in values))))
        return (double_to_bf16(result) if result.dtype == F8 else to_bf16(result))[()]

    return rounded


@by_type("add", *HALVES)
def add(ins: Instruction) -> Action:
    return _action(ins, lambda a, b: a + b, 2)


@by_type("sub", *HALVES)
def subtract(ins: Instruction) -> Action:
    return _action(ins, lambda a, b: a - b, 2)


@by_type("mul", *HALVES)
def multiply(ins: Instruction) -> Action:
    return _action(ins, lambda a, b: a * b, 2)


@by_type("fma", *HALVES)
def fused(ins: Instruction) -> Action:
    """Sums of float16 products are exact enough in float64; bfloat16 needs the care of `fma_double`."""
    return (
        _action(ins, lambda a, b, c: fma_double(a, b, c, 8), 3)
        if ins.type.startswith("bf")
        else _action(ins, _fma16, 3)
    )


def _fma16(a: Any, b: Any, c: Any) -> Any:
    return a.astype(F8) * b + c


@by_type("min", *HALVES)
def minimum(ins: Instruction) -> Action:
    return _action(ins, extreme(ins, smaller), 2)


@by_type("max", *HALVES)
def maximum(ins: Instruction) -> Action:
    return _action(ins, extreme(ins, larger), 2)


@by_type("ex2", *HALVES)
def exponential(ins: Instruction) -> Action:
    return _action(ins, shortened(units.ex2, ins.type.startswith("bf")), 1)


@by_type("tanh", *HALVES)
def hyperbolic_tangent(ins: Instruction) -> Action:
    return _action(ins, shortened(units.tanh, ins.type.startswith("bf")), 1)


@by_type("neg", *HALVES)
def negate(ins: Instruction) -> Action:
    return _bits(ins, "{0} ^ {1}", 0x8000)


@by_type("abs", *HALVES)
def absolute(ins: Instruction) -> Action:
    return _bits(ins, "{0} & {1}", 0x7FFF)


def _bits(ins: Instruction, code: str, mask: int) -> Action:
    """Sign bits only: NaN payloads stay."""
    pair = ins.type.endswith("x2")
    dtype = U4 if pair else U2
    number = Immediate(str(mask * 0x10001 if pair else mask))
    return Action(
        code=code, inputs=((ins.operands[1], dtype), (number, dtype)), outputs=((ins.operands[0], dtype),), pure=True
    )
