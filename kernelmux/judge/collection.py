"""What the judge is tried with, read from the text of each file: hostile code is not imported to learn its name.

A file of `attacks/<family>/` or `honest/` says in constants at its top level what it is:

    OP = "softmax"                  the operator that it stands for
    FUNCTION = "softmax"            the name in the file that is judged
    FOUND = "all outputs are 0"     what should be found: a regular expression, or a tuple of them of which one matches
    NEEDS = "cpu"                   "triton": it launches kernels of Triton, emulated without a GPU; "gpu": it needs one
    ALLOW = "torch"                 what it may use that is not its own, as `--allow` takes it; "" if it is not said
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmux.registry.errors import SpecError

HOME = Path(__file__).parent
HONEST = "honest"  # their family
NEEDS = ("cpu", "gpu", "triton")


@dataclass(frozen=True)
class Entry:
    """One file: an attack (`found` says what should be found) or an honest kernel (`found` is "")."""

    name: str
    family: str
    path: Path
    op: str
    function: str
    found: str
    needs: str
    allow: str
    summary: str


def attacks() -> list[Entry]:
    """Every attack, by family and name; SpecError if a file lacks a constant or has a wrong one."""
    return [_entry(path, path.parent.name) for path in _files("attacks/*/*.py")]


def honest() -> list[Entry]:
    """Every honest kernel by name; SpecError if a file lacks a constant or has a wrong one."""
    return [_entry(path, HONEST) for path in _files("honest/*.py")]


def _files(pattern: str) -> list[Path]:
    return sorted(path for path in HOME.glob(pattern) if not path.name.startswith("_"))


def _entry(path: Path, family: str) -> Entry:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    known = {
        n.targets[0].id: n.value for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
    }
    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
    if not summary:
        raise SpecError(f"{path}: expected a docstring that begins with what it does, got none")
    op, function, needs = (_text(path, name, known) for name in ("OP", "FUNCTION", "NEEDS"))
    if needs not in NEEDS:
        raise SpecError(f"{path}: NEEDS: expected one of {', '.join(NEEDS)}, got {needs!r}")
    found = "" if family == HONEST else _pattern(path, known)
    allow = _text(path, "ALLOW", known) if "ALLOW" in known else ""
    return Entry(path.stem, family, path, op, function, found, needs, allow, summary)


def _pattern(path: Path, known: dict[str, ast.expr]) -> str:
    """FOUND as one regular expression."""
    value = _value(path, "FOUND", known)
    parts = value if isinstance(value, tuple) else (value,)
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise SpecError(f"{path}: FOUND: expected a regular expression or a tuple of them, got {value!r}")
    try:
        return re.compile("|".join(parts)).pattern
    except re.error as error:
        raise SpecError(f"{path}: FOUND: expected a regular expression, got {value!r}: {error}") from error


def _text(path: Path, name: str, known: dict[str, ast.expr]) -> str:
    value = _value(path, name, known)
    if not isinstance(value, str) or not value:
        raise SpecError(f"{path}: {name}: expected a text, got {value!r}")
    return value


def _value(path: Path, name: str, known: dict[str, ast.expr]) -> Any:
    if name not in known:
        raise SpecError(f"{path}: {name}: expected a constant at the top level, got none")
    try:
        return ast.literal_eval(known[name])
    except ValueError as error:
        raise SpecError(f"{path}: {name}: expected a literal, got {ast.unparse(known[name])}") from error
