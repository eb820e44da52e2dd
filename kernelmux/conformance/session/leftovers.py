"""The temporary folder of a run, and those that runs left which were killed.

A run holds a lock on a file in its folder, which the system releases whatever ends the process. So a folder whose lock
is free is of a run that has ended, and the next run removes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # without such locks nothing is known of other runs, and nothing of theirs is removed
    fcntl = None

PREFIX = "kernelmux-conformance-"
LOCK = "in_use"


@contextmanager
def folder() -> Iterator[Path]:
    """A folder until the end of the run; those of killed runs are removed first."""
    clear()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as made, _held(Path(made)):
        yield Path(made)


def clear() -> None:
    """Remove the folders of ours whose process is gone; what cannot be removed stays, without a word."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if fcntl and _ours(path):
            _remove_if_free(path)


def _ours(path: Path) -> bool:
    """Whether it is a folder, and no link, of this user."""
    try:
        return not path.is_symlink() and path.is_dir() and path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _remove_if_free(path: Path) -> None:
    """Remove a folder whose lock is free; one without a lock is being made, or is not ours."""
    try:
        with open(path / LOCK, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold the lock of a folder; the file gets its name once it is locked, so that it never shows unlocked."""
    if not fcntl:
        yield
        return
    with open(path / f"{LOCK}.new", "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(file.name, path / LOCK)
        except OSError:  # a file system without locks: the folder looks like one that is being made
            pass
        yield
