"""Hashes of source text that say whether a record still speaks of the code at hand."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path


def digest(sources: Iterable[str]) -> str:
    """Twelve hex digits over texts without blank and comment lines; the same under every version of Python."""
    state = hashlib.sha256()
    for source in sources:
        lines = (line.rstrip() for line in source.splitlines())
        kept = [line for line in lines if line.strip() and not line.lstrip().startswith(("# ", "//"))]
        state.update("\n".join([*kept, ""]).encode())
    return state.hexdigest()[:12]


def sources(home: Path, package: str, stem: str) -> set[Path]:
    """The files of the package in `home` that its module `stem` consists of.

    The module, or the files of a package of that name; what these import of the same package, and so on; the CUDA
    sources named after each (`stem.cu`, `stem_*.cu`), and all headers.
    """
    found, waiting, seen = set(home.glob("*.cuh")), [stem], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        files = {p for pattern in (f"{name}.py", f"{name}.cu", f"{name}_*.cu", f"{name}/*") for p in home.glob(pattern)}
        found |= {p for p in files if p.is_file()}
        waiting += [module for p in files if p.suffix == ".py" for module in _imported(p, package)]
    return found


def _imported(file: Path, package: str) -> Iterator[str]:
    """Modules of `package` that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            yield str(node.module).removeprefix(f"{package}.").partition(".")[0]
