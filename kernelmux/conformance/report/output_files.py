"""The files of a run: the folder is checked before the work, each file is written as a whole."""

from __future__ import annotations

from pathlib import Path

from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.files import write

__all__ = ["prepare", "write"]


def prepare(folder: Path, names: tuple[str, ...]) -> None:
    """Make a folder and check that files of these names can be written there; ArgumentError says why not."""
    from kernelmux.runner import results  # its packages need not be there for who only reads records

    results.folder(folder)
    if taken := [name for name in names if (folder / name).is_dir()]:
        raise ArgumentError(f"--out {folder}: {taken[0]} is a folder there, expected a file or nothing")
