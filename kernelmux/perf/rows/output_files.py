"""Files that a command writes: checked before the work, then written as a whole."""

from __future__ import annotations

import os
from pathlib import Path

from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import files
from kernelmux.runner.results import folder as writable_folder


def writable(path: Path, option: str, made: bool = False) -> None:
    """ArgumentError, which names the option, if a file cannot be written there. made: create missing folders."""
    if path.is_dir():
        raise ArgumentError(f"{option}: expected a file, got the folder {path}")
    if made:
        writable_folder(path.parent, option)
    if not path.parent.is_dir():
        raise ArgumentError(f"{option}: {path}: the folder {path.parent} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentError(f"{option}: {path} cannot be written")


def write(path: Path, content: str | bytes) -> None:
    """Write a file as a whole, in folders that are created if they are missing; a pipe or a terminal is written to."""
    try:
        if path.exists() and not path.is_file():  # a pipe, a terminal
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, content)
    except OSError as error:
        raise ArgumentError(f"{path} cannot be written: {error.strerror}") from error
