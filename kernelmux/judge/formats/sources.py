"""Reading a stranger's Python file: its names without running it, and the module that running it gives."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch

from kernelmux.judge.formats import modes
from kernelmux.judge.formats.task import FormatError, read
from kernelmux.judge.formats.trial import first_line


def tree(path: Path) -> ast.Module:
    """The parsed file; FormatError where it is no Python."""
    try:
        return ast.parse(read(path))
    except (SyntaxError, ValueError) as error:
        raise FormatError(f"{path}: {first_line(error)}") from error


def names(path: Path) -> dict[str, ast.stmt]:
    """The functions, classes and variables that a file defines at its top level, without running it."""
    return defined(tree(path))


def defines(path: Path, name: str) -> bool:
    """Whether a file defines a name at its top level; one that is no Python, whether it says so."""
    try:
        return name in names(path)
    except FormatError:
        return path.is_file() and name in path.read_text(encoding="utf-8", errors="replace")


def file_name(path: Path) -> str:
    """The name of a solution's file in its process: its own, unless it would hide a module that others import."""
    return f"solution_{path.name}" if importlib.util.find_spec(path.stem.partition(".")[0]) else path.name


def without(text: str, functions: Collection[str]) -> str:
    """The text of a module with the lines of some functions left empty."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            lines[first - 1 : node.end_lineno] = [""] * (int(node.end_lineno or first) - first + 1)
    return "\n".join(lines) + "\n"


def defined(module: ast.Module) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return found


def module(
    path: Path, beside: Mapping[str, Path] | None = None, device: torch.device | None = None
) -> types.ModuleType:
    """The module of a reference's file, which runs here; FormatError where that raises.

    beside: modules that it imports, by file name. device: what cuda means while it runs.
    """
    with _importable(beside or {}), modes.placed(device or torch.device("cpu")):
        return _run(path, path.stem)


def _run(path: Path, name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FormatError(f"{path}: expected a Python file")
    made = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(made)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | FormatError):
            raise
        raise FormatError(f"{path.name}: {type(error).__name__}: {first_line(error)}") from error
    return made


@contextmanager
def _importable(beside: Mapping[str, Path]) -> Iterator[None]:
    """Inside, files import each other by their names; what had these names before has them again afterwards."""
    modules = {Path(name).stem: path for name, path in beside.items() if name.endswith(".py")}
    before = {name: sys.modules.pop(name, None) for name in modules}
    finder = _Beside(modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, old in before.items():
            sys.modules.pop(name, None)
            if old is not None:
                sys.modules[name] = old


class _Beside:
    """Finds the modules that lie beside a task's file."""

    def __init__(self, modules: Mapping[str, Path]) -> None:
        self.modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.modules:
            return None
        return importlib.util.spec_from_file_location(name, self.modules[name])


def of_text(text: str, name: str, what: str, device: torch.device | None = None) -> Callable[..., Any]:
    """A function of a module that is given as text, which runs here; FormatError where it raises or lacks it."""
    made = types.ModuleType(name)
    linecache.cache[f"<{what}>"] = (len(text), None, text.splitlines(keepends=True), f"<{what}>")
    with modes.placed(device or torch.device("cpu")):
        try:
            exec(compile(text, f"<{what}>", "exec"), vars(made))
        except Exception as error:
            raise FormatError(f"{what}: {type(error).__name__}: {first_line(error)}") from error
    function: Callable[..., Any] | None = getattr(made, name, None)
    if not callable(function):
        raise FormatError(f"{what}: expected a function {name}")
    return function
