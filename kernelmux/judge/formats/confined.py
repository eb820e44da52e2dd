"""A command line around a program that runs strangers' code: no network, nothing to write to, no other processes to see."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import kernelmux

HERE = Path(kernelmux.__file__).resolve().parents[1]


def command(program: Sequence[str], folder: Path) -> list[str]:
    """The program in a sandbox by bubblewrap that reads everything, and writes to a temporary folder that is its own.

    folder: what the program reads, which stays visible where it is. The program itself where there is no sandbox.
    """
    if not available():
        return list(program)
    seen = dict.fromkeys(str(p) for p in (folder.resolve(), HERE, Path(sys.prefix).resolve()))
    shown = [part for path in seen if _temporary(path) for part in ("--ro-bind", path, path)]
    return [*_sandbox(), *shown, "--chdir", str(HERE), *program]


@cache
def available() -> bool:
    """Whether bubblewrap is installed, and may make a sandbox here."""
    if shutil.which("bwrap") is None:
        return False
    return subprocess.run([*_sandbox(), "true"], capture_output=True, check=False).returncode == 0


def _sandbox() -> list[str]:
    return (
        "bwrap --ro-bind / / --tmpfs /tmp --dev /dev --proc /proc --unshare-all --new-session --die-with-parent".split()
    )


def _temporary(path: str) -> bool:
    return path.startswith("/tmp/")
