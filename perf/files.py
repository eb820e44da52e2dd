"""Files that a command writes: asked about before the work, and replaced as a whole."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from kernelmux.registry.errors import ArgumentError


def writable(path: Path, option: str, made: bool = False) -> None:
    """ArgumentError, which names the option, if a file cannot be written there; made: folders on the way are made."""
    if path.is_dir():
        raise ArgumentError(f"{option}: expected a file, got the folder {path}")
    if made:
        folder(path.parent, option)
    if not path.parent.is_dir():
        raise ArgumentError(f"{option}: {path}: the folder {path.parent} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentError(f"{option}: {path} cannot be written")


def folder(path: Path, option: str) -> Path:
    """The folder, made if need be; ArgumentError, which names the option, for what can be none."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{option}: expected a folder, got {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ArgumentError(f"{option}: the folder {path} cannot be written")
    return path


def write(path: Path, content: str | bytes) -> None:
    """Write a file: readers see all of the old content or of the new. A link is replaced and never followed to a file."""
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        if path.exists() and not path.is_file():  # a pipe, a terminal
            path.write_bytes(data)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            temporary = Path(file.name)
            file.write(data)
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise ArgumentError(f"{path} cannot be written: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
