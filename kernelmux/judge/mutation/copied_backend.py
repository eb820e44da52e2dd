"""A backend whose files are copies, one of them changed, in this process alone."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

from kernelmux.judge.mutation.change import TextChange
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import KernelmuxError


class StaleChange(KernelmuxError):
    """The file is not the one that the change was made for, or the backend was imported before."""


def install(backend: str, change: TextChange, folder: Path) -> None:
    """Copy a backend into a folder with a change, and have it imported from there; it must not have been imported yet."""
    package = registered.package(backend)
    if loaded := [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        raise StaleChange(f"{backend} has been imported already: {loaded[0]}")
    origin = registered.folder(backend)
    if origin is None:
        raise StaleChange(f"the files of {backend} cannot be found")
    parent = importlib.import_module(package.rpartition(".")[0])
    home = folder.joinpath(*parent.__name__.split("."))
    shutil.copytree(origin, home / backend, ignore=shutil.ignore_patterns("tests"))
    for outer in (home, *home.parents):
        if outer == folder:
            break
        (outer / "__init__.py").touch()
    path = home / backend / change.file
    path.write_text(change.applied(path.read_text(encoding="utf-8")), encoding="utf-8")
    parent.__path__.insert(0, str(home))


def compiles(backend: str, change: TextChange) -> bool:
    """Whether a changed file of Python can be parsed; of CUDA C++ that is left to its compiler."""
    origin = registered.folder(backend)
    if origin is None or not change.file.endswith(".py"):
        return True
    try:
        compile(change.applied((origin / change.file).read_text(encoding="utf-8")), change.file, "exec")
    except (SyntaxError, ValueError):
        return False
    return True
