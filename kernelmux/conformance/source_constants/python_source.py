"""The constants of Python definitions: conditions, tiles, arguments by name, values of modules, defaults."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernelmux.conformance.source_constants import expressions
from kernelmux.conformance.source_constants.constant import CONDITION, OTHER, PARAMETER, Constant, SourcePlace
from kernelmux.conformance.source_constants.expressions import SEVERAL, Known
from kernelmux.conformance.source_constants.python_files import PythonFile, Reached, resolved

CODE = 100  # characters of a line that are shown
# Arguments by name that are no size, and functions whose arguments are none.
NO_SIZES = frozenset(
    "num_warps num_stages num_ctas maxsize stacklevel dim axis ndim priority version seed tier".split()
)
NO_CALLS = frozenset("permute transpose movedim view_as select getenv Capability sm lru_cache".split())


class Parameters:
    """The values that arguments by name, and keys of configurations, have anywhere in what was reached."""

    def __init__(self, reached: Iterable[Reached], home: Path) -> None:
        self.found: dict[str, dict[int, None]] = {}
        for one in reached:
            known = scope(one, lambda name: (), home)
            for name, node in _named(one.node):
                for value in expressions.values(node, known):
                    self.found.setdefault(name, {})[value] = None

    def __call__(self, name: str) -> tuple[int, ...]:
        return tuple(self.found.get(name, ()))[:SEVERAL]


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What is given by name: keywords of calls, keys of dictionaries, defaults."""
    for part in ast.walk(node):
        if isinstance(part, ast.keyword) and part.arg and part.arg not in NO_SIZES:
            yield part.arg, part.value
        elif isinstance(part, ast.Dict):
            for key, value in zip(part.keys, part.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value not in NO_SIZES:
                    yield from ((key.value, one) for one in _elements(value))
        elif isinstance(part, ast.FunctionDef):
            positional = [*part.args.posonlyargs, *part.args.args]
            ends = part.args.defaults
            given = [*zip(positional[len(positional) - len(ends) :], ends, strict=True)]
            given += [(a, d) for a, d in zip(part.args.kwonlyargs, part.args.kw_defaults, strict=True) if d is not None]
            yield from ((a.arg, d) for a, d in given if a.arg not in NO_SIZES)


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List) else [node]


def scope(one: Reached, by_name: Known, home: Path) -> Known:
    """The values of names inside of a definition: assigned once in it, in its module or an imported one, or `by_name`."""
    own = _assigned_once(one.node)
    open_names: set[str] = set()

    def known(name: str) -> tuple[int, ...]:
        if name in open_names:
            return ()
        open_names.add(name)
        try:
            if name in own:
                return expressions.values(own[name], known)
            return _of_module(one.file, name, home) or by_name(name)
        finally:
            open_names.discard(name)

    return known


def _assigned_once(node: ast.AST) -> dict[str, ast.expr]:
    """The values of local names that are assigned in one place."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    found: dict[str, list[ast.expr]] = {}
    for part in ast.walk(node):
        if isinstance(part, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For | ast.NamedExpr):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            for name, value in (pair for target in targets for pair in _pairs(target, getattr(part, "value", None))):
                found.setdefault(name, []).append(value or ast.Tuple(elts=[], ctx=ast.Load()))
    taken = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    return {name: values[0] for name, values in found.items() if len(values) == 1 and name not in taken}


def _pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    """The names of a target, each with its own part of the value, or None where that is not written out."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
        for number, one in enumerate(target.elts):
            yield from _pairs(one, parts[number] if parts else None)


def _of_module(file: PythonFile, name: str, home: Path, depth: int = 4) -> tuple[int, ...]:
    found = resolved(file, name, home)
    if len(found) != 1 or not depth:
        return ()
    other, node = found[0]
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return ()
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    value = dict(_pairs(target, node.value)).get(name)
    if value is None:
        return ()
    return expressions.values(value, lambda n: () if n == name else _of_module(other, n, home, depth - 1))


def constants(reached: list[Reached], home: Path) -> Iterator[Constant]:
    """The constants of definitions, each as often as it stands there."""
    parameters = Parameters(reached, home)
    for one in reached:
        yield from _of(one, scope(one, parameters, home))


def _of(one: Reached, known: Known) -> Iterator[Constant]:
    taken: set[int] = set()  # literals that are part of something with a kind of its own
    parts = list(_parts(one.node))
    for part in parts:
        for value, kind, node, words in expressions.found_in(part, known):
            taken |= {id(n) for n in ast.walk(node)} if kind == CONDITION else set()
            taken |= {id(n) for n in ast.walk(node) if isinstance(n, ast.Constant)}
            yield Constant(value, place(one.file, node), kind, one.distance, words)
    for name, node in _named(one.node):
        for value in expressions.values(node, known):
            taken |= {id(n) for n in ast.walk(node)}
            yield Constant(value, place(one.file, node), PARAMETER, one.distance, frozenset({name.lower()}))
    for part in parts:
        if isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None:
            for value in (v for e in _elements(part.value) for v in expressions.values(e, known)):
                taken |= {id(n) for n in ast.walk(part)}
                yield Constant(value, place(one.file, part), PARAMETER, one.distance)
    for part in parts:
        if isinstance(part, ast.Constant) and id(part) not in taken:
            yield from (
                Constant(v, place(one.file, part), OTHER, one.distance) for v in expressions.values(part, lambda n: ())
            )


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a definition but for annotations, indices, and arguments that are no sizes."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        if isinstance(node, ast.Subscript) and name == "slice":
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or (isinstance(child, ast.keyword) and child.arg in NO_SIZES):
                continue
            if isinstance(child, ast.Call) and _name(child.func) in NO_CALLS:
                continue
            yield from _parts(child)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def place(file: PythonFile, node: ast.AST) -> SourcePlace:
    """Where a node stands, with its line; of a condition that of its `if`."""
    line: int = getattr(node, "lineno", 0)
    code = file.lines[line - 1].strip().rstrip(":") if 0 < line <= len(file.lines) else ""
    return SourcePlace(file.path, line, shortened(code))


def shortened(code: str) -> str:
    """Code on one line, cut where it is long."""
    code = " ".join(code.split()).replace("`", "'")
    return code if len(code) <= CODE else f"{code[: CODE - 3]}..."
