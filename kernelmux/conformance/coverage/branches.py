"""The branches of the Python functions of a file, and the file with a mark at each.

coverage.py counts lines, so it does not see a conditional expression on one line, which every second branch of a
launcher is; and its tracer slows down the emulator, which is Python too. So conditions themselves say what they were.
Code at the top of a module has no marks: it runs at the import. Nor have Triton kernels, which are compiled.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from kernelmux.conformance.source_constants import python_files
from kernelmux.conformance.source_constants.python_source import shortened

MARK = "__branch__"  # the function that marks call, a global of each module
COMPILED = ("jit",)  # decorators of functions that are no Python when they run
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class BranchPoint:
    """A place with two ways on: what a condition may be, or whether a loop, a handler or a case ever begins.

    code: what stands there, on one line. asked: the ways that a trial has to take (False, True); not those that only raise.
    """

    line: int
    code: str
    asked: tuple[bool, ...]

    def way(self, taken: bool) -> str:
        """One of its ways, in words: "`if rows > 1024`", "`if rows > 1024` that does not hold"."""
        return f"`{self.code}`" if taken else f"`{self.code}` that does not hold"


@dataclass(frozen=True)
class MarkedFile:
    """A file with its points. code: of each of its code objects the one with marks, which call `MARK(number, value)`."""

    points: tuple[BranchPoint, ...]
    code: dict[CodeType, CodeType]


def points(path: Path) -> tuple[BranchPoint, ...]:
    """The points of a file in a fixed order, () of one that cannot be read."""
    return _marked(path)[1]


@lru_cache(maxsize=512)
def marked(path: Path) -> MarkedFile | None:
    """A file with marks; None if it cannot be read or has no points."""
    file = python_files.read(path)
    tree, found = _marked(path)
    if file is None or not found:
        return None
    plain = compile(file.text, str(path), "exec", dont_inherit=True)
    pairs = zip(_codes(plain), _codes(compile(tree, str(path), "exec", dont_inherit=True)), strict=True)
    return MarkedFile(found, {a: b for a, b in pairs if a != b})


@lru_cache(maxsize=512)
def _marked(path: Path) -> tuple[ast.Module, tuple[BranchPoint, ...]]:
    """The tree of a file with marks, and its points."""
    marker, file = _Marker(), python_files.read(path)
    tree = marker.visit(ast.parse(file.text if file else ""))
    return ast.fix_missing_locations(tree), tuple(marker.points)


def _codes(code: CodeType) -> list[CodeType]:
    """A code object and all inside of it; marks add none, so two versions of a file have them in the same order."""
    inner = [one for const in code.co_consts if isinstance(const, CodeType) for one in _codes(const)]
    return [code, *inner]


class _Marker(ast.NodeTransformer):
    """Puts marks into a tree, and lists them."""

    def __init__(self) -> None:
        self.points: list[BranchPoint] = []
        self.inside = 0  # functions that the node stands in

    # --- functions ------------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: Any) -> ast.AST:
        """With marks in its body alone: decorators and defaults belong to what is around it."""
        if any(_name(d) in COMPILED for d in node.decorator_list):
            return node  # type: ignore[no-any-return]
        self.inside += 1
        node.body = self._statements(node.body)
        self.inside -= 1
        return node  # type: ignore[no-any-return]

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.inside += 1
        node.body = self.visit(node.body)
        self.inside -= 1
        return node

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            found += new if isinstance(new, list) else [new]
        return found

    # --- conditions -----------------------------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> ast.AST:
        asked = tuple(way for way, body in ((False, node.orelse), (True, node.body)) if not _raises(body))
        self._condition(node, f"if {_text(node.test)}", asked)
        return self.generic_visit(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        self._condition(node, f"while {_text(node.test)}")
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self._condition(node, f"if {_text(node.test)}")
        return self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        if self.inside:
            node.ifs = [self._asks(test, f"if {_text(test)}", (False, True)) for test in node.ifs]
        return self.generic_visit(node)

    def _condition(self, node: Any, code: str, asked: tuple[bool, ...] = (False, True)) -> None:
        if self.inside and not isinstance(node.test, ast.Constant):
            node.test = self._asks(node.test, code, asked)

    def _asks(self, test: ast.expr, code: str, asked: tuple[bool, ...]) -> ast.expr:
        """The condition, whose truth is marked; it is evaluated once, as before."""
        number = self._point(test, code, asked)
        return ast.copy_location(_call(number, test, test), test)

    # --- what may never begin -------------------------------------------------------------------------------------

    def visit_For(self, node: ast.For) -> Any:
        return self._begins(node, [(node, f"for {_text(node.target)} in {_text(node.iter)}")])

    def visit_AsyncFor(self, node: ast.AsyncFor) -> Any:
        return self._begins(node, [(node, f"for {_text(node.target)} in {_text(node.iter)}")])

    def visit_Try(self, node: ast.Try) -> Any:
        kinds = [(h, f"except {_text(h.type)}" if h.type else "except") for h in node.handlers if not _raises(h.body)]
        return self._begins(node, kinds)

    def visit_Match(self, node: ast.Match) -> Any:
        return self._begins(node, [(c, f"case {_text(c.pattern)}") for c in node.cases if not _raises(c.body)])

    def _begins(self, node: Any, parts: list[tuple[Any, str]]) -> Any:
        """A mark before the statement for each of its parts, and one where the part begins."""
        if not self.inside:
            return self.generic_visit(node)
        before = list[ast.stmt]()
        entered = []
        for part, code in parts:
            place = part if hasattr(part, "lineno") else part.pattern
            number = self._point(place, code, (True,))
            before.append(_statement(number, False, node))
            entered.append((part, _statement(number, True, part.body[0])))
        self.generic_visit(node)
        for part, mark in entered:
            part.body.insert(0, mark)
        return [*before, node]

    def _point(self, node: Any, code: str, asked: tuple[bool, ...]) -> int:
        self.points.append(BranchPoint(node.lineno, shortened(code), asked))
        return len(self.points) - 1


def _call(number: int, value: ast.expr, place: ast.AST) -> ast.expr:
    arguments: list[ast.expr] = [ast.copy_location(ast.Constant(number), place), value]
    return ast.copy_location(ast.Call(ast.copy_location(ast.Name(MARK, ast.Load()), place), arguments, []), place)


def _statement(number: int, value: bool, place: ast.AST) -> ast.stmt:
    call = _call(number, ast.copy_location(ast.Constant(value), place), place)
    return ast.copy_location(ast.Expr(call), place)


def _raises(body: list[ast.stmt]) -> bool:
    """Whether nothing comes of a body but an error: a trial that takes it has no result to judge."""
    return bool(body) and isinstance(body[-1], ast.Raise)


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _name(node: ast.expr) -> str:
    """The last word of a decorator, called or not."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
