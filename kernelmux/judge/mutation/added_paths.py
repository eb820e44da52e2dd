"""Changes that add something to a function that is called: a path for some calls alone, or state between calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelmux.conformance.source_constants.python_files import Reached
from kernelmux.judge.mutation.change import TextChange
from kernelmux.judge.mutation.python_changes import SourceText

CONDITIONS = (  # of a tensor x
    *(
        f"{{x}}.dim() > 0 and {{x}}.shape[-1] == {n}"
        for n in (37, 48, 96, 100, 200, 256, 320, 640, 768, 1000, 1024, 1536, 2048, 4096)
    ),
    *(f"{{x}}.dim() > 0 and {{x}}.shape[0] == {n}" for n in (3, 5, 12, 24, 48, 100, 128, 257, 512)),
    *(
        f"{{x}}.numel() {sign} {n}"
        for sign, n in ((">", 5000), (">", 20000), ("==", 1024), ("==", 4096), (">=", 65536))
    ),
    "{x}.numel() > 0 and {x}.numel() % 512 == 0",
    "{x}.dim() > 3",
    "{x}.dtype == torch.bfloat16",
    "{x}.dtype == torch.float16 and {x}.numel() > 64",
    "{x}.dim() > 1 and {x}.stride(-1) != 1",
    "not {x}.is_contiguous()",
    "{x}.data_ptr() % 16 != 0",
    "{x}.numel() > 0 and float({x}.double().abs().amax()) > 1000.0",
    "{x}.numel() > 0 and bool({x}.isinf().any())",
    "{x}.numel() > 1 and float({x}.flatten()[0]) > float({x}.flatten()[-1]) + 3.0",
)
NUMBERS = ("{a} < 0", "{a} > 1.5", "{a} == 0.3", "abs({a}) > 30")  # of a scalar a
KEYS = (
    "(tuple({x}.shape), {x}.dtype)",
    "({x}.data_ptr(), tuple({x}.shape), {x}.dtype)",
    "(tuple({x}.shape), {x}.dtype, float({x}.double().sum()) if {x}.numel() else 0.0)",
    "id({x})",
)
WRONG = """


def _mutant_wrong(y, how):
    if isinstance(y, tuple):
        return (_mutant_wrong(y[0], how), *y[1:])
    y = y.clone()
    if how == "all":
        return y + 1 if not y.dtype.is_floating_point else (y.float() * 1.125).to(y.dtype)
    if y.numel():
        y.flatten()[-1:].fill_(0) if how == "last" else y[..., -1:].fill_(0) if y.dim() else y.fill_(0)
    return y
"""
KEPT = """


_mutant_kept = {}


def _mutant_count():
    _mutant_kept["count"] = _mutant_kept.get("count", 0) + 1
    return _mutant_kept["count"]
"""
WAYS = ("all", "last", "column")


def changes(reached: Reached, name: str) -> Iterator[TextChange]:
    """The changes of a function that users call; [] for any other definition. name: of its file, as changes have it."""
    node = reached.node
    if reached.distance or not isinstance(node, ast.FunctionDef):
        return
    text = SourceText(reached.file)
    tensors, numbers = _arguments(node)
    if not tensors:
        return
    at_end = len(text.text)
    for turn, result in enumerate(_results(node)):
        start, end = text.span(result)
        code = f"({text.of(result)})"
        conditions = [c.format(x=x) for x in tensors[:2] for c in CONDITIONS] + [
            c.format(a=a) for a in numbers for c in NUMBERS
        ]
        for number, condition in enumerate(conditions):
            new = f"(_mutant_wrong({code}, {WAYS[(turn + number) % len(WAYS)]!r}) if {condition} else {code})"
            yield TextChange.of("fast path", name, text.text, [(start, end, new), (at_end, at_end, WRONG)])
        for key in (k.format(x=tensors[0]) for k in KEYS):
            new = f"_mutant_kept.setdefault({key}, {code})"
            yield TextChange.of("state", name, text.text, [(start, end, new), (at_end, at_end, KEPT)])
        for count in (5, 11):
            new = f"(_mutant_wrong({code}, 'all') if _mutant_count() % {count} == 0 else {code})"
            yield TextChange.of("state", name, text.text, [(start, end, new), (at_end, at_end, KEPT + WRONG)])
    for scalar in numbers:
        first = next(s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)))
        at = text.span(first)[0]
        new = f"{scalar} = _mutant_kept.setdefault((tuple({tensors[0]}.shape), {scalar!r}), {scalar})\n"
        edit = (at, at, new + " " * first.col_offset)
        yield TextChange.of("state", name, text.text, [edit, (at_end, at_end, KEPT)])


def _arguments(node: ast.FunctionDef) -> tuple[list[str], list[str]]:
    """The names of its tensors and of its numbers, by their annotations."""
    every = [
        (a.arg, ast.unparse(a.annotation) if a.annotation else "") for a in (*node.args.args, *node.args.kwonlyargs)
    ]
    tensors = [name for name, kind in every if kind in ("torch.Tensor", "Tensor")]
    return tensors, [name for name, kind in every if kind == "float"]


def _results(node: ast.AST) -> Iterator[ast.expr]:
    """What a function returns; functions inside of it are their own."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return) and child.value is not None:
            yield child.value
        elif not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from _results(child)
