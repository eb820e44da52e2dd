"""The two sides of the comparison: this emulator, and the one in the folder of `--against`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmux.emulator import checks, compile_ptx, load

ARCH = "sm_80"  # what the kernels of the cases need; both sides execute the PTX that NVRTC makes for it

LaunchCall = Callable[..., None]  # (grid, block, arguments, shared_mem=0, out=())


@dataclass(frozen=True)
class Side:
    """A way to run kernels: `kernel(path of the source, name, mode)` compiles one and gives what launches it."""

    name: str
    kernel: Callable[[Path, str, str], LaunchCall]


def ours() -> Side:
    """This emulator."""
    return Side("ours", _our_kernel)


def _our_kernel(source: Path, name: str, mode: str) -> LaunchCall:
    kernel = load(compile_ptx(source.read_text(), arch=ARCH, filename=source.name)).kernel(name)

    def launch(grid: Any, block: Any, arguments: Any, *, shared_mem: int = 0, out: Any = ()) -> None:
        with checks(mode):
            kernel.launch(grid, block, arguments, shared=shared_mem)

    return launch


def other(module: Any) -> Side:
    """One with `module.RawKernel(source text, name, mode=mode, arch=...)(grid, block, arguments, shared_mem=, out=)`."""

    def kernel(source: Path, name: str, mode: str) -> LaunchCall:
        launch: LaunchCall = module.RawKernel(source.read_text(), name, mode=mode, arch=ARCH.replace("sm", "compute"))
        return launch

    return Side("theirs", kernel)


def module(file: Path) -> Any:
    """A Python file as a module; it may import the files beside it."""
    spec = importlib.util.spec_from_file_location(f"compared_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise FileNotFoundError(f"{file} does not exist")
    made = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(made)
    finally:
        sys.path.remove(str(file.parent))
    return made
