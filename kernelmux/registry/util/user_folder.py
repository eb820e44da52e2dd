"""The folder of the user: what was measured (`timings`, perf's records) and found (`tuned_configs`) on the GPUs at hand."""

from __future__ import annotations

import os
from pathlib import Path

from kernelmux.registry.errors import ArgumentError

VARIABLE = "KERNELMUX_HOME"


def folder() -> Path | None:
    """KERNELMUX_HOME, else kernelmux in XDG_DATA_HOME, else in ~/.local/share; it may not exist yet.

    None where the user has no home. A relative XDG_DATA_HOME counts as none, as the XDG base directory specification says.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    data = Path(os.environ.get("XDG_DATA_HOME") or "")
    try:
        return (data if data.is_absolute() else Path.home() / ".local/share") / "kernelmux"
    except RuntimeError:
        return None


def required(name: str, option: str) -> Path:
    """A folder in it, "times"; ArgumentError, which names the option, where the user has no home."""
    if (found := folder()) is None:
        raise ArgumentError(f"{option}: expected a folder for what is kept, got none: set {VARIABLE}")
    return found / name
