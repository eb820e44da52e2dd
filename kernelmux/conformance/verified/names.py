"""Names of fields, keyword arguments and attributes, which count in what operators mean, and where code declares them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from kernelmux import registry
from kernelmux.registry.errors import NOTHING

HOMES = tuple(Path(registry.__file__).resolve().parent.with_name(part) for part in ("registry", "conformance"))
ASIDE = {"tests", "mutants", "templates"}  # folders of code that no operator and no judge uses


class Names:
    """How names are read: `read` has another one for some, by today's.

    met: those that count in what was written with this. texts: strings there; some may be names too, and all count as
    they are.
    """

    def __init__(self, read: Mapping[str, str] = NOTHING) -> None:
        self.read, self.met, self.texts = read, set[str](), set[str]()

    def __call__(self, name: str) -> str:
        self.met.add(name)
        return self.read.get(name, name)

    def text(self, value: str) -> str:
        self.texts.add(value)
        return value


@cache
def declared() -> dict[str, tuple[str, ...]]:
    """Where classes of the registry and the suite have a field or method, by its name: "ErrorModel in .../numerics.py"."""
    found: dict[str, dict[str, None]] = {}
    for place, tree in _trees().items():
        for name, owner in _declared(tree):
            found.setdefault(name, {})[f"{owner} in {place}"] = None
    return {name: tuple(places) for name, places in found.items()}


@cache
def parameters() -> frozenset[str]:
    """The names of all parameters of functions there."""
    return frozenset(node.arg for tree in _trees().values() for node in ast.walk(tree) if isinstance(node, ast.arg))


@cache
def _trees() -> dict[str, ast.Module]:
    files = [(home, path) for home in HOMES for path in sorted(home.rglob("*.py"))]
    return {
        path.relative_to(home.parent).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for home, path in files
        if not ASIDE & set(path.relative_to(home).parts)
    }


def _declared(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that classes of a module have, each with its class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, "the class"
            yield from ((name, node.name) for statement in node.body for name in _of(statement))
            for inner in ast.walk(node):  # self.name = ...
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                    yield inner.attr, node.name


def _of(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement in the body of a class gives to it."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    yield from (inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name))
