"""Integers in expressions, as syntax trees of Python: what they are worth, and which size a comparison is about."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator
from itertools import pairwise, product

from kernelmux.conformance.source_constants.constant import CONDITION, LIMIT, TILE

Known = Callable[[str], tuple[int, ...]]  # the values that a name may have, () for none that are known
SEVERAL = 8  # values of one expression, at most
MOST = 2**40
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,  # of sizes, as C has it
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Pow: operator.pow,
}
DIVISIONS = ("cdiv", "ceil_div", "ceildiv", "div_up")  # functions of the family's name for ceil(n / block)
ARANGE = ("arange", "range")


def values(node: ast.expr, known: Known) -> tuple[int, ...]:
    """What a constant expression may be worth; () for one that is not constant."""
    if isinstance(node, ast.Constant):
        return _number(node.value)
    if isinstance(node, ast.Name):
        return known(node.id)
    if isinstance(node, ast.Attribute):
        return known(node.attr)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return tuple(-v for v in values(node.operand, known))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return _combined(node, known)
    if isinstance(node, ast.Call) and _called(node) in ("int", "int32_t", "int64_t", "size_t") and len(node.args) == 1:
        return values(node.args[0], known)
    return ()


def _number(value: object) -> tuple[int, ...]:
    if isinstance(value, float) and value.is_integer() and abs(value) <= MOST:  # 1e6
        return (int(value),)
    return (value,) if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST else ()


def _combined(node: ast.BinOp, known: Known) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for a, b in product(values(node.left, known), values(node.right, known)):
        large = isinstance(node.op, ast.Pow | ast.LShift) and not (0 <= b <= 64 and abs(a) <= 2**16)
        if large or (isinstance(node.op, ast.RShift) and b < 0):
            continue
        try:
            value = OPERATORS[type(node.op)](a, b)
        except ZeroDivisionError:
            continue
        if abs(value) <= MOST:
            found[int(value)] = None
    return tuple(found)[:SEVERAL]


def sizes(node: ast.expr, value: int, known: Known) -> Iterator[int]:
    """The sizes at which `node` is `value`: 4096 for `n // 1024` and 4."""
    if isinstance(node, ast.BinOp):
        left, right = values(node.left, known), values(node.right, known)
        if right and not left:
            for b in right:
                yield from _solved(node.op, node.left, value, b, known)
            return
        if left and not right and isinstance(node.op, ast.Mult | ast.Add):
            for b in left:
                yield from _solved(node.op, node.right, value, b, known)
            return
    if isinstance(node, ast.Call) and _called(node) in DIVISIONS and len(node.args) == 2:
        for b in values(node.args[1], known):
            yield from sizes(node.args[0], value * b, known)
        return
    yield value


def _solved(op: ast.operator, unknown: ast.expr, value: int, b: int, known: Known) -> Iterator[int]:
    inverse: dict[type[ast.operator], Callable[[], int]] = {
        ast.Add: lambda: value - b,
        ast.Sub: lambda: value + b,
        ast.Mult: lambda: math.ceil(value / b) if b else value,
        ast.FloorDiv: lambda: value * b,
        ast.Div: lambda: value * b,
        ast.Mod: lambda: b,
        ast.RShift: lambda: value << b if 0 <= b <= 32 else value,
    }
    yield from sizes(unknown, inverse.get(type(op), lambda: value)(), known)


def found_in(node: ast.AST, known: Known) -> Iterator[tuple[int, str, ast.expr, frozenset[str]]]:
    """The sizes of one node (not of what is below it): value, kind, the expression, and the words beside it."""
    if isinstance(node, ast.Compare):
        yield from _compared(node, known)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.FloorDiv | ast.Div):
        if not values(node.left, known):
            yield from ((v, TILE, node, words(node.left)) for v in values(node.right, known))
    elif isinstance(node, ast.Call):
        yield from _of_call(node, known)


def _compared(node: ast.Compare, known: Known) -> Iterator[tuple[int, str, ast.expr, frozenset[str]]]:
    sides = [node.left, *node.comparators]
    for a, b in pairwise(sides):
        for side, other in ((a, b), (b, a)):
            several = side.elts if isinstance(side, ast.Tuple | ast.Set | ast.List) else [side]
            for one in (v for item in several for v in values(item, known)):
                if not values(other, known):
                    yield from ((size, CONDITION, node, words(other)) for size in sizes(other, one, known))


def _of_call(node: ast.Call, known: Known) -> Iterator[tuple[int, str, ast.expr, frozenset[str]]]:
    name = _called(node)
    if name in ("min", "max", "minimum", "maximum", "clamp"):
        beside = frozenset().union(*(words(a) for a in node.args if not values(a, known)))
        yield from ((v, LIMIT, node, beside) for a in node.args for v in values(a, known))
    elif name in DIVISIONS and len(node.args) == 2:
        yield from ((v, TILE, node, words(node.args[0])) for v in values(node.args[1], known))
    elif name in ARANGE:
        yield from ((v, TILE, node, frozenset()) for a in node.args for v in values(a, known))


def _called(node: ast.Call) -> str:
    """The last part of the name of a function."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def words(node: ast.AST) -> frozenset[str]:
    """The names in an expression, in small letters."""
    found = (
        n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)
    )
    return frozenset(name.lower() for name in found)
