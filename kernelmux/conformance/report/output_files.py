"""The files of a run: the folder is checked before the work, each file is written as a whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.files import write

__all__ = ["prepare", "write"]


def prepare(folder: Path, names: tuple[str, ...]) -> None:
    """Make a folder and check that files of these names can be written there; ArgumentError says why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        what = "is not a folder" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise ArgumentError(f"--out {folder}: expected a folder that can be written to: {what}") from error
    if taken := [name for name in names if (folder / name).is_dir()]:
        raise ArgumentError(f"--out {folder}: {taken[0]} is a folder there, expected a file or nothing")
