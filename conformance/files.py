"""Writing files so that what is there is either the old text or the whole new one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kernelmux.registry.errors import ArgumentError


def write(path: Path, text: str) -> None:
    """Put a text in place of a file. A link of that name is replaced and not followed; OSError as for any write."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """What the process takes away from the permissions of new files; there is no way to read it alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def prepare(folder: Path, names: tuple[str, ...]) -> None:
    """Make a folder and see that files of these names can be put into it; ArgumentError says why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        what = "is not a folder" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise ArgumentError(f"--out {folder}: expected a folder that can be written to: {what}") from error
    if taken := [name for name in names if (folder / name).is_dir()]:
        raise ArgumentError(f"--out {folder}: {taken[0]} is a folder there, expected a file or nothing")
