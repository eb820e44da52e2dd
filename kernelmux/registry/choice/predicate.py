"""Conditions that a user writes: "N >= 4096 and N % 8 == 0", over the axes and scalars of an operator.

Names, numbers, texts, True, False, None; + - * // %; comparisons, `in`, `and`, `or`, `not`; brackets. A scalar of two
numbers is a tuple, however the caller wrote it: "stride == (2, 2)". There are no calls, attributes or indices, so that a
configuration file can compute nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from kernelmux.registry.errors import ArgumentError, cut, shown, unknown
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import Call

EXAMPLE = '"N >= 4096 and N % 8 == 0"'
LONGEST = 1000  # characters: how deeply conditions may nest depends on the version of Python
VOCABULARY = "names of axes and scalars, numbers, texts, + - * // %, comparisons, in, and, or, not"
_ALLOWED = (
    ast.Expression,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Compare,
    ast.BoolOp,
    ast.BinOp,
    ast.UnaryOp,
    ast.And,
    ast.Or,
    ast.Not,
    ast.USub,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Mod,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.In,
    ast.NotIn,
)
_CONSTANTS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Predicate:
    """A checked condition. place: where it is written, for errors; names: the axes and scalars that it looks at."""

    text: str
    place: str
    names: frozenset[str]
    code: CodeType

    def holds(self, call: Call) -> bool:
        """Whether a call meets it; one that does not have all of its axes does not. ArgumentError if it has no answer."""
        values = values_of(call)
        if not self.names <= values.keys():
            return False
        given = {name: values[name] for name in self.names}
        try:
            found = eval(self.code, {"__builtins__": {}}, given)  # of the nodes above, and of nothing else
        except (TypeError, ZeroDivisionError, OverflowError, MemoryError) as error:
            raise self._wrong(call, f"{type(error).__name__}: {error}", given) from None
        if not isinstance(found, bool):
            raise self._wrong(call, repr(found), given)
        return found

    def check(self, spec: OpSpec) -> None:
        """UnknownName for what is neither an axis nor a scalar of the operator; ArgumentError for no condition on it."""
        calls = [spec.hypothetical(case) for case in spec.workloads]
        letters = {letter for tensor in spec.tensors for letter in tensor.letters}
        known = sorted(letters.union(*(values_of(call) for call in calls)))
        for name in sorted(self.names - set(known)):
            raise unknown(f"axis or scalar of {spec.name}", name, known, self.place)
        for call in calls:
            self.holds(call)

    def _wrong(self, call: Call, got: str, given: Mapping[str, Any]) -> ArgumentError:
        at = ", ".join(f"{name} = {shown(value)}" for name, value in sorted(given.items()))
        return ArgumentError(
            f"{self.place}: expected a condition such as {EXAMPLE}, got {shown(self.text)}, which for {call.spec.name}"
            f"{f' with {at}' if at else ''} gives {cut(got)}"
        )


class Several(tuple[Any, ...]):
    """The numbers of one scalar: stride == (2, 1), stride in [(1, 1), (2, 2)]; never equal to a single number."""

    __slots__ = ()
    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        if other is not None and not isinstance(other, tuple | list):
            raise TypeError(f"expected {len(self)} numbers to compare with, such as {tuple(self)}, got {other!r}")
        return other is not None and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _uncounted(self, other: Any) -> Any:
        raise TypeError(f"{tuple(self)} is no number to compute with")

    __add__ = __mul__ = __rmul__ = _uncounted


def values_of(call: Call) -> dict[str, Any]:
    """What a condition may look at: the axes by letter, without the leading ones that "..." stands for, and the scalars."""
    scalars = {name: Several(v) if isinstance(v, tuple) else v for name, v in call.scalars.items()}
    return {**{name: n for name, n in call.axes.items() if name != "..."}, **scalars}


def parse(text: str, place: str) -> Predicate:
    """The condition that a text says; ArgumentError, which begins with `place`, for any other text."""
    if len(text) > LONGEST:
        told = f"expected a condition of at most {LONGEST:,} characters, got {len(text):,}"
        raise ArgumentError(f"{place}: {told}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        for node in ast.walk(tree):
            _check(node, text, place)
        code = compile(tree, "<where>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"{place}: expected a condition such as {EXAMPLE}, got {shown(text)}: {cut(str(error))}"
        ) from None
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return Predicate(text, place, names, code)


def _check(node: ast.AST, text: str, place: str) -> None:
    allowed = isinstance(node, _ALLOWED)
    if isinstance(node, ast.Constant):
        allowed = isinstance(node.value, _CONSTANTS)
    elif isinstance(node, ast.BinOp):
        allowed = isinstance(node.op, _ALLOWED) and all(map(_is_operand, (node.left, node.right)))
    if not allowed:
        got = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
        raise ArgumentError(f"{place}: expected {VOCABULARY}, got {shown(got)} in {shown(text)}")


def _is_operand(node: ast.AST) -> bool:
    """Whether one can compute with it: texts would be repeated, or formatted by %."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    return isinstance(node, ast.Name | ast.BinOp | ast.UnaryOp)
