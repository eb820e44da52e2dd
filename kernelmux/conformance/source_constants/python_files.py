"""Python files as text: what they define and import, and which definitions a function reaches. Nothing is imported."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

DEEPEST = 8  # functions that lead to one another
MOST = 400  # definitions that a function may reach
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
Imported = tuple[str, str | None, int]  # the module as it is written, what of it, and how many dots stand before it


@dataclass(frozen=True, eq=False)
class PythonFile:
    """A file that was parsed."""

    path: Path
    text: str
    tree: ast.Module

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def definitions(self) -> dict[str, list[Definition]]:
        """What stands at the top of the module, also inside of `if`, `try` and `with`, by name."""
        found: dict[str, list[Definition]] = {}
        for node in _top(self.tree.body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)):
                    found.setdefault(name, []).append(node)
        return found

    @cached_property
    def imports(self) -> dict[str, Imported]:
        """What the names of all imports of the file stand for, those inside of functions too."""
        found: dict[str, Imported] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    found[one.asname or one.name.partition(".")[0]] = (one.name, None, 0)
            elif isinstance(node, ast.ImportFrom):
                for one in node.names:
                    found[one.asname or one.name] = (node.module or "", one.name, node.level)
        return found

    def function_at(self, line: int) -> ast.AST | None:
        """The outermost function or class at the top of the module (with decorators) that this line is in."""
        for nodes in self.definitions.values():
            for node in nodes:
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
                if first <= line <= (node.end_lineno or node.lineno):
                    return node
        return None


def _top(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _top(getattr(node, part, ()))


@lru_cache(maxsize=512)
def read(path: Path) -> PythonFile | None:
    """A file, or None for one that cannot be read or parsed."""
    try:
        text = path.read_text(encoding="utf-8")
        return PythonFile(path, text, ast.parse(text))
    except (OSError, SyntaxError, ValueError):
        return None


def resolved(file: PythonFile, name: str, home: Path, depth: int = 4) -> list[tuple[PythonFile, Definition]]:
    """What a name of the file stands for, followed through imports of files inside of `home`."""
    if name in file.definitions:
        return [(file, node) for node in file.definitions[name]]
    if name in file.imports and depth:
        module, what, level = file.imports[name]
        other = _module(file, module, level, home)
        if other and what:
            return resolved(other, what, home, depth - 1)
    return []


def module_of(file: PythonFile, name: str, home: Path) -> PythonFile | None:
    """The file of a module that a name stands for: of `from package import _kernels`, or `import helper`."""
    if name not in file.imports:
        return None
    module, what, level = file.imports[name]
    return _module(file, f"{module}.{what}".strip(".") if what else module, level, home)


def _module(file: PythonFile, module: str, level: int, home: Path) -> PythonFile | None:
    folder = file.path.parent
    if level:
        for _ in range(level - 1):
            folder = folder.parent
    else:
        while (folder / "__init__.py").is_file():
            folder = folder.parent
    stem = folder.joinpath(*module.split(".")) if module else folder
    for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
        if path.is_file() and path.resolve().is_relative_to(home.resolve()):
            return read(path)
    return None


@dataclass(frozen=True, eq=False)
class Reached:
    """A definition, and how many names lead to it from where the reading began."""

    file: PythonFile
    node: ast.AST
    distance: int


def reach(starts: Iterable[tuple[PythonFile, ast.AST]], home: Path) -> list[Reached]:
    """The definitions that some nodes use, directly or through one another, the nearest first.

    Functions, classes and values at the top of modules inside of `home`; of a class all that it holds.
    """
    queue = deque(Reached(file, node, 0) for file, node in starts)
    seen = {id(one.node) for one in queue}
    found: list[Reached] = []
    while queue and len(found) < MOST:
        one = queue.popleft()
        found.append(one)
        if one.distance == DEEPEST:
            continue
        for file, node in _used(one.file, one.node, home):
            if id(node) not in seen:
                seen.add(id(node))
                queue.append(Reached(file, node, one.distance + 1))
    return found


@lru_cache(maxsize=4096)
def _used(file: PythonFile, node: ast.AST, home: Path) -> tuple[tuple[PythonFile, Definition], ...]:
    return tuple(_names_used(file, node, home))


def _names_used(file: PythonFile, node: ast.AST, home: Path) -> Iterator[tuple[PythonFile, Definition]]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            yield from resolved(file, part.id, home)
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            other = module_of(file, part.value.id, home)
            if other:
                yield from resolved(other, part.attr, home)
