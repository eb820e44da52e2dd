"""Compiles a test kernel and launches it with full checks."""

from pathlib import Path
from typing import Any

import pytest

from kernelmux.emulator import checks, compile_ptx, load, nvrtc, time_limit
from kernelmux.emulator.validation.speed import cases

FOLDERS = (Path(__file__).parent / "kernels", cases.KERNELS)

needs_nvrtc = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))


def source(stem: str) -> str:
    """The text of a kernel file: of the tests' own, or of those that are timed as well."""
    return next(folder / f"{stem}.cu" for folder in FOLDERS if (folder / f"{stem}.cu").is_file()).read_text()


def launch(
    text: str,
    name: str,
    grid: Any,
    block: Any,
    *args: Any,
    mode: str = "full",
    limit: float = 20,
    names: Any = (),
    shared: int = 0,
) -> None:
    """Compiles `text` and runs one of its kernels."""
    kernel = load(compile_ptx(text, arch="sm_90a", filename="kernel.cu")).kernel(name)
    with checks(mode), time_limit(limit):
        kernel.launch(grid, block, args, names=names, shared=shared)
