"""Arithmetic in float32 and float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.numeric import directed, flush, fma32, fma64, fma_odd
from kernelmux.emulator.ops import Action
from kernelmux.emulator.ops.dispatch import by_type
from kernelmux.emulator.parser import Instruction
from kernelmux.emulator.ptx_types import dtype_of

F4, F8 = np.dtype("f4"), np.dtype("f8")
FLOATS = ("f32", "f64")
DIRECTIONS = ("rz", "rm", "rp")


def _action(ins: Instruction, run: Callable[..., Any], sources: int, code: str | None = None) -> Action:
    """`run` (or, without modifiers that change the result, `code`) over operands of the instruction's type."""
    dtype = dtype_of(ins.type)
    inputs = tuple((o, dtype) for o in ins.operands[1 : 1 + sources])
    outputs = ((ins.operands[0], dtype),)
    if code is not None and not ins.has("ftz") and not ins.has("sat"):
        return Action(code=code, inputs=inputs, outputs=outputs, pure=True)
    return Action(modified(ins, run), inputs, outputs, pure=True, exact=True)


def modified(ins: Instruction, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with .ftz (subnormal float32 inputs and results are zeros) and .sat (0 to 1, NaN to 0)."""
    if ins.has("sat"):
        run = _saturated(run)
    return _flushed(run) if ins.has("ftz") and ins.type == "f32" else run


def _saturated(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: np.fmin(np.fmax(run(*values), F4.type(0)), F4.type(1))


def _flushed(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: flush(run(*(flush(v) for v in values)))


def _direction(ins: Instruction) -> str | None:
    return next((m for m in ins.modifiers if m in DIRECTIONS), None)


def _rounded(ins: Instruction, code: str, sources: int, exact: Callable[..., Any]) -> Action:
    """Nearest even by numpy; other directions from `exact`, the float64 result for float32 operands."""
    direction = _direction(ins)
    if direction is None:
        return _action(ins, _function(code), sources, code.replace("one", f"F{dtype_of(ins.type).itemsize}.type(1)"))
    if ins.type == "f64":
        raise Unsupported(f"{ins.opcode}: directed rounding of float64 is not emulated")
    return _action(ins, lambda *v: directed(exact(*v), direction, F4), sources)


@cache
def _function(code: str) -> Callable[..., Any]:
    """The expression as a function of one or two operands."""
    function: Callable[..., Any] = eval(f"lambda a, b=None: {code.format('a', 'b')}", {"np": np, "one": F4.type(1)})
    return function


@by_type("add", *FLOATS)
def add(ins: Instruction) -> Action:
    return _rounded(ins, "{0} + {1}", 2, lambda a, b: fma_odd(a, F4.type(1), b))


@by_type("sub", *FLOATS)
def subtract(ins: Instruction) -> Action:
    return _rounded(ins, "{0} - {1}", 2, lambda a, b: fma_odd(a, F4.type(1), -b))


@by_type("mul", *FLOATS)
def multiply(ins: Instruction) -> Action:
    return _rounded(ins, "{0} * {1}", 2, lambda a, b: a.astype(F8) * b)


@by_type("fma", *FLOATS)
def fused(ins: Instruction) -> Action:
    direction = _direction(ins)
    if ins.type == "f64":
        return _action(ins, fma64, 3)
    if direction is None:
        return _action(ins, fma32, 3)
    return _action(ins, lambda a, b, c: directed(fma_odd(a, b, c), direction, F4), 3)


@by_type("mad", *FLOATS)
def multiply_add(ins: Instruction) -> Action:
    return fused(ins)


@by_type("div", *FLOATS)
def divide(ins: Instruction) -> Action:
    return _rounded(ins, "{0} / {1}", 2, lambda a, b: a.astype(F8) / b)


@by_type("rcp", *FLOATS)
def reciprocal(ins: Instruction) -> Action:
    return _rounded(ins, "one / {0}", 1, lambda a: 1 / a.astype(F8))


@by_type("sqrt", *FLOATS)
def square_root(ins: Instruction) -> Action:
    return _rounded(ins, "np.sqrt({0})", 1, lambda a: np.sqrt(a.astype(F8)))


@by_type("rsqrt", *FLOATS)
def reciprocal_root(ins: Instruction) -> Action:
    return _action(ins, lambda a: (1 / np.sqrt(a.astype(F8))).astype(a.dtype), 1)


@by_type("ex2", "f32")
def exponential(ins: Instruction) -> Action:
    return _action(ins, np.exp2, 1, "np.exp2({0})")


@by_type("lg2", "f32")
def logarithm(ins: Instruction) -> Action:
    return _action(ins, np.log2, 1, "np.log2({0})")


@by_type("sin", "f32")
def sine(ins: Instruction) -> Action:
    return _action(ins, np.sin, 1, "np.sin({0})")


@by_type("cos", "f32")
def cosine(ins: Instruction) -> Action:
    return _action(ins, np.cos, 1, "np.cos({0})")


@by_type("tanh", "f32")
def hyperbolic_tangent(ins: Instruction) -> Action:
    return _action(ins, np.tanh, 1, "np.tanh({0})")


@by_type("neg", *FLOATS)
def negate(ins: Instruction) -> Action:
    return _action(ins, np.negative, 1, "-{0}")


@by_type("abs", *FLOATS)
def absolute(ins: Instruction) -> Action:
    return _action(ins, np.abs, 1, "np.abs({0})")


@by_type("min", *FLOATS)
def minimum(ins: Instruction) -> Action:
    return _action(ins, _extreme(ins, smaller), 2)


@by_type("max", *FLOATS)
def maximum(ins: Instruction) -> Action:
    return _action(ins, _extreme(ins, larger), 2)


def larger(a: Any, b: Any) -> Any:
    """max: a NaN loses against a number, -0 is smaller than +0."""
    result = np.fmax(a, b)
    plain = np.abs(result) > 0
    if np.count_nonzero(plain) == plain.size:
        return result
    result = np.where((a == 0) & (b == 0), a + b, result)
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, result))[()]  # numpy lets signalling NaN win


def smaller(a: Any, b: Any) -> Any:
    """min, by the same rules."""
    return -larger(-a, -b)


def _extreme(ins: Instruction, run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    if ins.has("NaN"):
        run = _propagating(run)
    return _with_product_sign(run) if ins.has("xorsign") else run


def _propagating(run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """.NaN: a NaN wins."""
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), run(a, b))[()]


def _with_product_sign(run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """.xorsign.abs: of the magnitudes, with the sign of the product."""
    return lambda a, b: np.copysign(run(np.abs(a), np.abs(b)), np.copysign(1, a) * np.copysign(1, b)).astype(a.dtype)


@by_type("copysign", *FLOATS)
def copy_sign(ins: Instruction) -> Action:
    return _action(ins, lambda a, b: np.copysign(b, a), 2)


@by_type("testp", *FLOATS)
def test(ins: Instruction) -> Action:
    dtype = dtype_of(ins.type)
    tiny = np.finfo(dtype).tiny
    tests: dict[str, Callable[[Any], Any]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": lambda a: (np.abs(a) < tiny) & (a != 0),
    }
    return Action(tests[ins.modifiers[0]], ((ins.operands[1], dtype),), ((ins.operands[0], bool),), pure=True)
