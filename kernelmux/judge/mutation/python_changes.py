"""Changes of Python: of Triton kernels, of launchers, of functions of torch. The text is kept; parts of it are replaced."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from kernelmux.conformance.source_constants.python_files import PythonFile, Reached
from kernelmux.judge.mutation.change import TextChange, integers

COMPARISONS: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: ">="}
WRITTEN: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "=="}
BARRIERS = ("debug_barrier", "fence_async_shared", "wait", "async_wait", "barrier")
FLOATS = ("float32", "float")
CHOICES = ("where", "maximum", "minimum", "fmax", "fmin")
FILLED = {"zeros": "empty", "zeros_like": "empty_like", "new_zeros": "new_empty"}
MASKS = ("mask", "inside", "valid", "boundary_check")
NO_SITES = (ast.Raise, ast.Assert, ast.JoinedStr)


class SourceText:
    """A file with the places of nodes in characters."""

    def __init__(self, file: PythonFile) -> None:
        self.text = file.text
        self.begins = [0]
        for line in file.text.splitlines(keepends=True):
            self.begins.append(self.begins[-1] + len(line))
        self.lines = file.text.splitlines()

    def at(self, line: int, column: int) -> int:
        text = self.lines[line - 1]
        inside = column if text.isascii() else len(text.encode()[:column].decode())
        return self.begins[line - 1] + inside

    def span(self, node: ast.AST) -> tuple[int, int]:
        start = self.at(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return start, self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def of(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]


def changes(reached: Reached, name: str, weight: float) -> Iterator[TextChange]:
    """The changes of one definition. name: of its file, as changes have it."""
    text = SourceText(reached.file)
    for node in _nodes(reached.node):
        for kind, start, end, new in _of(node, text):
            yield TextChange.of(kind, name, text.text, [(start, end, new)], weight)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a definition that compute: no annotations, decorators, docstrings, errors."""
    if isinstance(node, NO_SITES):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            documents = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not documents:
                yield from _nodes(child)


def _of(node: ast.AST, text: SourceText) -> Iterator[tuple[str, int, int, str]]:
    if isinstance(node, ast.Constant):
        yield from _constant(node, text)
    elif isinstance(node, ast.BinOp):
        yield from _sum(node, text)
    elif isinstance(node, ast.BoolOp):
        start, end = text.span(node)
        for left_out in range(len(node.values)):
            kept = [text.of(v) for i, v in enumerate(node.values) if i != left_out]
            word = " and " if isinstance(node.op, ast.And) else " or "
            yield "term", start, end, f"({word.join(kept)})"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _comparison(node, text)
    elif isinstance(node, ast.Call):
        yield from _call(node, text)
    elif isinstance(node, ast.Subscript):
        yield from _subscript(node, text)
    elif isinstance(node, ast.AugAssign):
        yield from _accumulated(node, text)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        yield from _assigned(node, text)
    elif isinstance(node, ast.If):
        start, end = text.span(node.test)
        yield "mask", start, end, f"True or ({text.of(node.test)})"
    elif isinstance(node, ast.IfExp):
        yield from (("special values", *text.span(node), f"({text.of(part)})") for part in (node.body, node.orelse))


def _constant(node: ast.Constant, text: SourceText) -> Iterator[tuple[str, int, int, str]]:
    start, end = text.span(node)
    if isinstance(node.value, bool):
        yield "constant", start, end, str(not node.value)
    elif isinstance(node.value, int):
        yield from (("constant", start, end, str(one)) for one in integers(node.value))
    elif isinstance(node.value, float):
        yield from (("constant", start, end, repr(node.value * f)) for f in (1.01, 0.5) if node.value)
        yield "constant", start, end, repr(node.value + 1.0)


def _sum(node: ast.BinOp, text: SourceText) -> Iterator[tuple[str, int, int, str]]:
    start, end = text.span(node)
    left, right = text.of(node.left), text.of(node.right)
    if isinstance(node.op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr):
        yield "term", start, end, f"({left})"
        yield "term", start, end, f"({right})"
    elif isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod):
        yield "term", start, end, f"({left})"
    if isinstance(node.op, ast.Sub):
        yield "order", start, end, f"(({right}) - ({left}))"
    elif isinstance(node.op, ast.Mod | ast.FloorDiv):
        sign = "//" if isinstance(node.op, ast.Mod) else "%"
        yield "order", start, end, f"(({left}) {sign} ({right}))"
    elif isinstance(node.op, ast.BitAnd):
        yield from (("mask", start, end, f"({kept})") for kept in (left, right))


def _comparison(node: ast.Compare, text: SourceText) -> Iterator[tuple[str, int, int, str]]:
    kind = type(node.ops[0])
    if kind not in COMPARISONS:
        return
    start, end = text.span(node.left)[1], text.span(node.comparators[0])[0]
    between = text.text[start:end]
    if between.count(WRITTEN[kind]) == 1:
        yield "comparison", start, end, between.replace(WRITTEN[kind], COMPARISONS[kind])
    if kind in (ast.Lt, ast.LtE):
        start, end = text.span(node.comparators[0])
        yield "mask", start, end, f"({text.of(node.comparators[0])} + 1)"


def _call(node: ast.Call, text: SourceText) -> Iterator[tuple[str, int, int, str]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    whole = text.span(node)
    yield from _keywords(node, text)
    if name in BARRIERS:
        yield "barrier", *whole, "None"
    if name in CHOICES and len(node.args) > 1:
        parts = node.args[1:3] if name == "where" else node.args[:2]
        yield from (("special values", *whole, f"({text.of(part)})") for part in parts)
    if name in ("isnan", "isinf", "isfinite"):
        yield "special values", *whole, f"({text.of(node)} & False)"
    if name == "nan_to_num" and isinstance(node.func, ast.Attribute):
        yield "special values", *whole, text.of(node.args[0] if node.args else node.func.value)
    if name in FILLED and isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") != "tl":
        start, end = text.span(node.func)
        yield "initial value", start, end, f"{text.text[start : end - len(name)]}{FILLED[name]}"
    if name == "zeros" and isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "tl":
        yield "initial value", *whole, f"({text.of(node)} + 1)"
    if name in ("zero_", "fill_") and isinstance(node.func, ast.Attribute):
        yield "initial value", *whole, text.of(node.func.value)
    if name in ("float", "to", "double") and isinstance(node.func, ast.Attribute):
        yield from _converted(node, node.func, text)
    plain = [a for a in node.args if isinstance(a, ast.Name | ast.Subscript | ast.Attribute)]
    for one, other in pairwise(plain):
        (start, middle), (begin, end) = text.span(one), text.span(other)
        if text.of(one) != text.of(other):
            yield "order", start, end, text.of(other) + text.text[middle:begin] + text.of(one)


def _keywords(node: ast.Call, text: SourceText) -> Iterator[tuple[str, int, int, str]]:
    for keyword in node.keywords:
        start, end = text.span(keyword.value)
        if keyword.arg == "mask":
            yield "mask", start, end, f"({text.of(keyword.value)}) | True"
        elif keyword.arg == "other":
            yield "initial value", start, end, f"{text.of(keyword.value)} + 1"
        elif keyword.arg == "propagate_nan":
            yield "special values", start, end, "tl.PropagateNan.NONE"
        elif keyword.arg == "dtype" and text.of(keyword.value).rpartition(".")[2] in FLOATS:
            prefix = text.of(keyword.value).rpartition(".")[0]
            yield "accumulator", start, end, f"{prefix}.float16" if prefix else "float"


def _converted(node: ast.Call, function: ast.Attribute, text: SourceText) -> Iterator[tuple[str, int, int, str]]:
    """A conversion to fp32 left out, or made by way of bf16."""
    given = text.of(node.args[0]) if len(node.args) == 1 else ""
    inner = text.of(function.value)
    if function.attr == "to" and given == "tl.float32":
        yield "accumulator", *text.span(node), f"{inner}.to(tl.bfloat16).to(tl.float32)"
        yield "accumulator", *text.span(node), inner
    elif (function.attr in ("float", "double") and not node.args) or given in ("torch.float32", "torch.float64"):
        yield "accumulator", *text.span(node), f"{inner}.bfloat16().float()"
        yield "accumulator", *text.span(node), inner


def _subscript(node: ast.Subscript, text: SourceText) -> Iterator[tuple[str, int, int, str]]:
    start, end = text.span(node.slice)
    code = text.of(node.slice)
    others = {"0": "1", "1": "0", "-1": "-2", "-2": "-1", "2": "1", ":, None": "None, :", "None, :": ":, None"}
    if code in others:
        yield "order", start, end, others[code]


def _accumulated(node: ast.AugAssign, text: SourceText) -> Iterator[tuple[str, int, int, str]]:
    if not isinstance(node.op, ast.Add | ast.Sub):
        return
    start, end = text.span(node)
    target, value = text.of(node.target), text.of(node.value)
    if isinstance(node.target, ast.Name):
        sign = "+" if isinstance(node.op, ast.Add) else "-"
        yield "accumulator", start, end, f"{target} = ({target} {sign} ({value})).to(tl.bfloat16).to(tl.float32)"
        yield "term", start, end, f"{target} = ({value})"


def _assigned(node: ast.Assign | ast.AnnAssign, text: SourceText) -> Iterator[tuple[str, int, int, str]]:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    if isinstance(target, ast.Name) and node.value is not None and any(m in target.id for m in MASKS):
        yield "mask", *text.span(node.value), f"({text.of(node.value)}) | True"
    infinite = node.value is not None and text.of(node.value).replace('"', "'")
    if infinite in ("-float('inf')", "float('-inf')", "float('inf')"):
        yield "initial value", *text.span(node.value), "0.0"  # type: ignore[arg-type]
