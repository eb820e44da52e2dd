"""Arithmetic in float32 and float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic.directed_rounding import (
    add_lost,
    directed,
    divide_lost,
    multiply_lost,
    root_lost,
    stepped,
    vanishes,
    zero_of_sum,
)
from kernelmux.emulator.arithmetic.floats import NAN, fma32, fma64, fma64_lost, fma_odd
from kernelmux.emulator.arithmetic.mufu_forms import approximation
from kernelmux.emulator.ops import Action, not_emulated
from kernelmux.emulator.ops.dispatch import by_type
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.parser import Instruction

F4, F8 = np.dtype("f4"), np.dtype("f8")
FLOATS = ("f32", "f64")
DIRECTIONS = ("rz", "rm", "rp")
Run = Callable[..., Any]


def _action(ins: Instruction, run: Run, sources: int, code: str | None = None, exact: Run | None = None) -> Action:
    """`run` (or, without modifiers that change the result, `code`) over operands of the instruction's type."""
    dtype = dtype_of(ins.type)
    if len(ins.operands) != 1 + sources:
        raise not_emulated(ins, f"expected {1 + sources} operands, got {len(ins.operands)}")
    inputs = tuple((o, dtype) for o in ins.operands[1:])
    outputs = ((ins.operands[0], dtype),)
    flushed = ins.has("ftz") and ins.type == "f32"
    if code is not None and not ins.has("sat") and (not flushed or exact is None):
        return Action(code=code, inputs=inputs, outputs=outputs, pure=True, flushed=flushed)
    return Action(_modified(ins, run, exact), inputs, outputs, pure=True, exact=True, flushed=flushed)


def _modified(ins: Instruction, run: Run, exact: Run | None) -> Run:
    """`run` with .ftz (subnormal float32 results are zeros, as the inputs are before) and .sat (0 to 1, NaN to 0).

    exact: the result in float64, where rounding can make a normal number of one that .ftz flushes; None: the result is one
    of the inputs but for its sign.
    """
    if exact is not None and ins.has("ftz") and ins.type == "f32":
        run = _flushed(run, exact, _direction(ins) or "rn")
    return _saturated(run) if ins.has("sat") else run


def _saturated(run: Run) -> Run:
    return lambda *values: saturate(run(*values))


def saturate(value: Any) -> Any:
    """.sat: 0 to 1; NaN and -0 give +0."""
    kind = value.dtype.type
    return np.fmin(np.fmax(value, kind(0)), kind(1)) + kind(0)


def _flushed(run: Run, exact: Run, mode: str) -> Run:
    least = F4.type(2.0**-126)

    def flushing(*values: Any) -> Any:
        result = run(*values)
        size = np.abs(result)
        small = size <= least
        count = np.count_nonzero(small)
        if not count or count == np.count_nonzero(size == 0):  # zeros alone, which stay
            return result
        small = small & vanishes(exact(*values), mode) if np.any(size == least) else size < least
        flushed: Any = np.where(small, np.copysign(F4.type(0), result), result)
        return flushed[()]

    return flushing


def _direction(ins: Instruction) -> str | None:
    return next((m for m in ins.modifiers if m in DIRECTIONS), None)


def _rounded(ins: Instruction, code: str, sources: int, exact: Run, lost: Run) -> Action:
    """Nearest even by numpy. Other directions of float32 from `exact` in float64, of float64 from what was `lost`."""
    mode = _direction(ins)
    if mode is None:
        code = code.replace("one", f"F{dtype_of(ins.type).itemsize}.type(1)")
        return _action(ins, function(code), sources, code, exact)
    if ins.type == "f64":
        return _action(ins, _stepping(lost, mode), sources)
    return _action(ins, lambda *v: canonical(directed(exact(*v), mode, F4)), sources, exact=exact)


def _stepping(lost: Run, mode: str) -> Run:
    def run(*values: Any) -> Any:
        near, rest = lost(*values)
        return stepped(near, rest, mode)

    return run


def canonical(value: Any) -> Any:
    """float32 or float16 with the NaN that a GPU's arithmetic gives."""
    nan: Any = np.isnan(value)
    if not np.any(nan):
        return value
    quiet: Any = np.where(nan, NAN.astype(value.dtype), value)
    return quiet[()]


@cache
def function(code: str) -> Run:
    """The expression as a function of one or two operands."""
    made: Run = eval(f"lambda a, b=None: {code.format('a', 'b')}", {"np": np, "F4": F4, "F8": F8})
    return made


@by_type("add", *FLOATS)
def add(ins: Instruction) -> Action:
    return _sum(ins, "{0} + {1}", np.positive)


@by_type("sub", *FLOATS)
def subtract(ins: Instruction) -> Action:
    return _sum(ins, "{0} - {1}", np.negative)


def _sum(ins: Instruction, code: str, sign: Callable[[Any], Any]) -> Action:
    """a plus b with a sign."""
    down, near = ins.has("rm"), function(code)

    def exact(a: Any, b: Any) -> Any:
        total = fma_odd(a, F4.type(1), sign(b))
        return zero_of_sum(total, a, sign(b)) if down else total

    def lost(a: Any, b: Any) -> tuple[Any, Any]:
        rest = add_lost(a, sign(b))[1]
        return zero_of_sum(near(a, b), a, sign(b)) if down else near(a, b), rest

    return _rounded(ins, code, 2, exact, lost)


@by_type("mul", *FLOATS)
def multiply(ins: Instruction) -> Action:
    return _rounded(ins, "{0} * {1}", 2, lambda a, b: a.astype(F8) * b, multiply_lost)


@by_type("fma", *FLOATS)
def fused(ins: Instruction) -> Action:
    mode, down = _direction(ins), ins.has("rm")

    def exact(a: Any, b: Any, c: Any) -> Any:
        total = fma_odd(a, b, c)
        return zero_of_sum(total, a.astype(F8) * b, c) if down else total

    def lost(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
        total, rest = fma64_lost(a, b, c)
        return np.where(rest == 0, zero_of_sum(total, a * b, c), total) if down else total, rest

    if ins.type == "f64":
        return _action(ins, _stepping(lost, mode) if mode else fma64, 3)
    if mode is None:
        return _action(ins, fma32, 3, exact=exact)
    return _action(ins, lambda a, b, c: canonical(directed(exact(a, b, c), mode, F4)), 3, exact=exact)


@by_type("mad", *FLOATS)
def multiply_add(ins: Instruction) -> Action:
    return fused(ins)


@by_type("div", *FLOATS)
def divide(ins: Instruction) -> Action:
    if ins.has("approx") or ins.has("full"):
        return _approximated(ins, 2)
    return _rounded(ins, "{0} / {1}", 2, lambda a, b: a.astype(F8) / b, divide_lost)


@by_type("rcp", *FLOATS)
def reciprocal(ins: Instruction) -> Action:
    if ins.has("approx"):
        return _approximated(ins, 1)
    return _rounded(ins, "one / {0}", 1, lambda a: 1 / a.astype(F8), lambda a: divide_lost(F8.type(1), a))


@by_type("sqrt", *FLOATS)
def square_root(ins: Instruction) -> Action:
    if ins.has("approx"):
        return _approximated(ins, 1)
    return _rounded(ins, "np.sqrt({0})", 1, lambda a: np.sqrt(a.astype(F8)), root_lost)


@by_type("rsqrt", *FLOATS)
def reciprocal_root(ins: Instruction) -> Action:
    return _approximated(ins, 1)


@by_type("ex2", "f32")
@by_type("lg2", "f32")
@by_type("sin", "f32")
@by_type("cos", "f32")
@by_type("tanh", "f32")
def approximated(ins: Instruction) -> Action:
    """Functions that have no exactly rounded form."""
    return _approximated(ins, 1)


def _approximated(ins: Instruction, sources: int) -> Action:
    """.approx and .full, as the function units of an H200 compute them; .ftz is another form of them."""
    dtype = dtype_of(ins.type)
    run = approximation(ins.name, ins.type, full=ins.has("full"), flushing=ins.has("ftz"))
    inputs = tuple((o, dtype) for o in ins.operands[1 : 1 + sources])
    return Action(run, inputs, ((ins.operands[0], dtype),), pure=True)


@by_type("neg", *FLOATS)
def negate(ins: Instruction) -> Action:
    return _action(ins, np.negative, 1, "-{0}")


@by_type("abs", *FLOATS)
def absolute(ins: Instruction) -> Action:
    return _action(ins, np.abs, 1, "np.abs({0})")


@by_type("min", *FLOATS)
def minimum(ins: Instruction) -> Action:
    return _extremum(ins, smaller)


@by_type("max", *FLOATS)
def maximum(ins: Instruction) -> Action:
    return _extremum(ins, larger)


def _extremum(ins: Instruction, run: Run) -> Action:
    """Of two numbers; from sm_100 on of three too, where .abs may stand alone."""
    if len(ins.operands) < 4 or ins.type != "f32":
        return _action(ins, extreme(ins, run), 2)
    of_two = _propagating(run) if ins.has("NaN") else run

    def of_three(*values: Any) -> Any:
        a, b, c = (np.abs(v) for v in values) if ins.has("abs") else values
        return of_two(of_two(a, b), c)

    return _action(ins, of_three, 3)


def larger(a: Any, b: Any) -> Any:
    """max: a NaN loses against a number, -0 is smaller than +0."""
    return _chosen(np.fmax(a, b), a, b, lambda: a + b)


def smaller(a: Any, b: Any) -> Any:
    """min, by the same rules."""
    return _chosen(np.fmin(a, b), a, b, lambda: -(-a - b))


def _chosen(result: Any, a: Any, b: Any, zero: Callable[[], Any]) -> Any:
    plain = np.abs(result) > 0
    if np.count_nonzero(plain) == plain.size:
        return result
    result = np.where((a == 0) & (b == 0), zero(), result)
    result = np.where(np.isnan(a), b, np.where(np.isnan(b), a, result))[()]  # numpy lets signalling NaN win
    return canonical(result) if result.dtype == F4 else result


def extreme(ins: Instruction, run: Run) -> Run:
    """`run` (`larger` or `smaller`) with .NaN (a NaN wins) and .xorsign.abs (of the magnitudes, the product's sign)."""
    if ins.has("NaN"):
        run = _propagating(run)
    return _with_product_sign(run) if ins.has("xorsign") else run


def _propagating(run: Run) -> Run:
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), NAN if a.dtype == F4 else np.nan, run(a, b))[()]


def _with_product_sign(run: Run) -> Run:
    def signed(a: Any, b: Any) -> Any:
        result = run(np.abs(a), np.abs(b))
        return np.where(np.isnan(result), result, np.copysign(result, np.copysign(1, a) * np.copysign(1, b)))[()]

    return signed


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
        "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= tiny) | (a == 0)),  # zero is normal: seen on an H200
        "subnormal": lambda a: (np.abs(a) < tiny) & (a != 0),
    }
    return Action(tests[ins.modifiers[0]], ((ins.operands[1], dtype),), ((ins.operands[0], bool),), pure=True)
