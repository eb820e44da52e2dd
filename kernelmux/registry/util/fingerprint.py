"""Hashes of source text that say whether a record still speaks of the code at hand."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

HEADERS = "include"  # the folder of a package with CUDA sources that holds their headers


def digest(sources: Iterable[str]) -> str:
    """Twelve hex digits over texts without blank and comment lines; the same under every version of Python."""
    state = hashlib.sha256()
    for source in sources:
        lines = (line.rstrip() for line in source.splitlines())
        kept = [line for line in lines if line.strip() and not line.lstrip().startswith(("# ", "//"))]
        state.update("\n".join([*kept, ""]).encode())
    return state.hexdigest()[:12]


def sources(home: Path, package: str, stem: str, base: tuple[Path, str] | None = None) -> set[Path]:
    """The files of the package in `home` that its module `stem` consists of.

    The module, or the files of a package of that name; the CUDA source of the same stem and those whose names stand in
    it (`"softmax_registers.cu"`); the headers that these include; what the modules import of the same package, and so on:
    of `from package.matmul._blocked import tile_of` that file, and not the others of its folder.
    base: folder and name of another package, whose modules and headers count too.
    """
    found: set[Path] = set()
    waiting = _module(home, stem)
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            waiting += _used(home, package, file, text)
            waiting += _used(*base, file, text) if base else ()
        else:
            waiting += [folder / name for name in _INCLUDE.findall(text) for folder in _folders(file, home, base)]
    return found


def _folders(file: Path, home: Path, base: tuple[Path, str] | None) -> list[Path]:
    """Where the headers of a CUDA source may lie."""
    return [file.parent, *(place / HEADERS for place in (home, *([base[0]] if base else [])))]


_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def _module(home: Path, name: str) -> list[Path]:
    """A module, "transpose" or "matmul._blocked", or the files of a package of that name."""
    path = home.joinpath(*name.split("."))
    return [path.with_name(f"{path.name}.py"), *path.glob("*")]


def _used(home: Path, package: str, file: Path, text: str) -> Iterator[Path]:
    """What a module uses: CUDA sources beside it, and modules of the same package, wherever in it these are imported."""
    yield file.with_suffix(".cu")  # a package gives all its files
    cuda, modules = _named(text, package)
    yield from (file.with_name(name) for name in cuda)
    for name in modules:
        yield from _module(home, name)


@lru_cache(maxsize=1024)
def _named(text: str, package: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The CUDA sources and the modules of `package` that the text of a module names."""
    nodes = list(ast.walk(ast.parse(text)))
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    cuda = tuple(value for value in values if isinstance(value, str) and value.endswith(".cu"))
    return cuda, tuple(name for node in nodes for name in _imported(node, package))


def _imported(node: ast.AST, package: str) -> list[str]:
    """The modules of `package` that a statement imports."""
    if not isinstance(node, ast.ImportFrom):
        return []
    if node.module == package:
        return [alias.name for alias in node.names]
    inner = (node.module or "").startswith(f"{package}.")
    return [str(node.module).removeprefix(f"{package}.")] if inner else []
