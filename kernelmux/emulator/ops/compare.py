"""setp, set, selp, slct: comparisons and choices."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic.floats import flush, from_bf16
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, not_emulated, operation
from kernelmux.emulator.ops.pairs import halves
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.operands import SINK, Pair
from kernelmux.emulator.ptx.parser import Instruction

F2, F4, U2, U4 = (np.dtype(t) for t in ("f2", "f4", "u2", "u4"))
SYMBOLS = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
BOOLEAN = {"and": "&", "or": "|", "xor": "^"}
COMBINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
FLOATING = ("f16", "bf16", "f32", "f64")


def _code(relation: str, floating: bool) -> str:
    """The comparison of `{0}` and `{1}` as Python; with NaN, ordered forms are false and `…u` forms true."""
    if relation in ("num", "nan"):
        nan = "(({0} != {0}) | ({1} != {1}))"
        return nan if relation == "nan" else f"(~{nan})"
    if floating and relation.endswith("u") and relation[:-1] in SYMBOLS:
        opposite = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}[relation]
        return f"(~{_code(opposite, True)})"
    if floating and relation == "ne":  # numpy's != is the unordered form
        return "(({0} < {1}) | ({0} > {1}))"
    if relation not in SYMBOLS:
        raise Unsupported(f"the comparison .{relation} is not emulated")
    return f"({{0}} {SYMBOLS[relation]} {{1}})"


def _comparison(ins: Instruction, kind: str) -> tuple[str, np.dtype[Any]]:
    """Code and operand type of the comparison that an instruction makes."""
    code = _code(ins.modifiers[0], kind in FLOATING)
    wrap = "from_bf16" if kind == "bf16" else "flush" if ins.has("ftz") else ""
    if wrap:
        code = code.replace("{0}", f"{wrap}({{0}})").replace("{1}", f"{wrap}({{1}})")
    return code, dtype_of(kind)


@operation("setp")
def set_predicate(ins: Instruction) -> Action:
    if ins.type in ("f16x2", "bf16x2"):
        return _set_predicates(ins)
    target, a, b, *third = ins.operands
    code, dtype = _comparison(ins, ins.type)
    inputs = [(a, dtype), (b, dtype)] + [(o, np.dtype(bool)) for o in third]
    other = f"(~{code})"
    if third:
        symbol = BOOLEAN[next(m for m in ins.modifiers if m in BOOLEAN)]
        code, other = f"{code} {symbol} {{2}}", f"{other} {symbol} {{2}}"
    if isinstance(target, Pair):
        return Action(
            code=f"({code}, {other})",
            inputs=tuple(inputs),
            outputs=((target.first, bool), (target.second, bool)),
            pure=True,
        )
    return Action(code=code, inputs=tuple(inputs), outputs=((target, bool),), pure=True)


def _set_predicates(ins: Instruction) -> Action:
    """Packed: one predicate per half."""
    target, a, b, *third = ins.operands
    compare = _pair_comparison(ins)
    symbol = next((m for m in ins.modifiers if m in BOOLEAN), None)

    def run(a: Any, b: Any, *c: Any) -> tuple[Any, Any]:
        rows = compare(a, b)
        result = [_scalar(rows[:, i], a, b) for i in (0, 1)]
        if symbol:
            result = [COMBINED[symbol](r, c[0]) for r in result]
        return result[0], result[1]

    outputs = (target.first, target.second) if isinstance(target, Pair) else (target, SINK)
    inputs = [(a, U4), (b, U4)] + [(o, np.dtype(bool)) for o in third]
    return Action(run, tuple(inputs), tuple((o, bool) for o in outputs), pure=True)


def _scalar(column: np.ndarray, *values: Any) -> Any:
    return column if any(np.ndim(v) for v in values) else column[0]


def _pair_comparison(ins: Instruction) -> Any:
    code = eval("lambda a, b: " + _code(ins.modifiers[0], True).format("a", "b"))
    half = U2 if ins.type == "bf16x2" else F2

    def compare(a: Any, b: Any) -> np.ndarray:
        rows = [halves(v, half) for v in (a, b)]
        numbers = [from_bf16(r) if half == U2 else (flush(r) if ins.has("ftz") else r).astype(F4) for r in rows]
        return code(*numbers)  # type: ignore[no-any-return]

    return compare


_TRUE = {"f64": "F8.type(1)", "f32": "F4.type(1)", "f16": "F2.type(1)", "bf16": "U2.type(0x3F80)"}
_ALL_ONES = {"u32": "U4.type(0xFFFFFFFF)", "s32": "I4.type(-1)", "u16": "U2.type(0xFFFF)", "s16": "I2.type(-1)"}


@operation("set")
def set_value(ins: Instruction) -> Action:
    """All ones (integers) or 1.0 where the comparison holds; `set.lt.and.f32.s32 d, a, b, p` combines it with p."""
    result, source = ins.modifiers[-2:]
    target, a, b, *third = ins.operands
    if source.endswith("x2"):
        return _set_pair(ins, result, target, a, b, third)
    code, dtype = _comparison(ins, source)
    if third:
        code = f"({code} {BOOLEAN[next(m for m in ins.modifiers if m in BOOLEAN)]} {{2}})"
    yes = (_TRUE | _ALL_ONES).get(result)
    if yes is None:
        raise not_emulated(ins)
    zero = yes.split("(")[0] + "(0)"
    inputs = ((a, dtype), (b, dtype), *((o, np.dtype(bool)) for o in third))
    return Action(
        code=f"where({code}, {yes}, {zero})[()]", inputs=inputs, outputs=((target, dtype_of(result)),), pure=True
    )


def _set_pair(ins: Instruction, result: str, target: Any, a: Any, b: Any, third: list[Any]) -> Action:
    compare = _pair_comparison(ins)
    one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(result, 0xFFFF)
    combine = next((COMBINED[m] for m in ins.modifiers if m in BOOLEAN), None)

    def run(a: Any, b: Any, *c: Any) -> Any:
        true = compare(a, b)
        if combine is not None:
            true = combine(true, np.reshape(c[0], (-1, 1)))
        rows = np.where(true, np.uint16(one), np.uint16(0))
        return _scalar(np.ascontiguousarray(rows).view(U4)[:, 0], a, b, *c)

    inputs = ((a, U4), (b, U4), *((o, np.dtype(bool)) for o in third))
    return Action(run, inputs, ((target, U4),), pure=True)


@operation("selp")
def select(ins: Instruction) -> Action:
    dtype = dtype_of(ins.type)
    target, yes, no, condition = ins.operands
    return Action(
        code="select({2}, {0}, {1})",
        inputs=((yes, dtype), (no, dtype), (condition, bool)),
        outputs=((target, dtype),),
        pure=True,
    )


@operation("slct")
def select_by_sign(ins: Instruction) -> Action:
    """a where c >= 0, else b."""
    dtype, kind = dtype_of(ins.modifiers[-2]), dtype_of(ins.type)
    target, yes, no, sign = ins.operands
    return Action(
        code=f"select({'flush({2})' if ins.has('ftz') else '{2}'} >= 0, {{0}}, {{1}})",
        inputs=((yes, dtype), (no, dtype), (sign, kind)),
        outputs=((target, dtype),),
        pure=True,
    )
