"""Launches on CPU tensors: the same source, compiled to PTX and run by the emulator."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from kernelmux import emulator
from kernelmux.emulator import nvrtc
from kernelmux.registry.util import cards

# CuPy adds these to the options of every kernel; NVRTC below 13.2 needs the second for a lambda that takes `auto`.
AS_CUPY = ("-ftz=true", "--device-as-default-execution-space")


class EmulatedFunction:
    """One kernel entry on the emulator; same interface as a CUDA function."""

    def __init__(
        self,
        text: str,
        entry: str,
        options: tuple[str, ...],
        filename: str,
        folders: tuple[Path, ...],
        names: tuple[str, ...],
        arch: str,
    ):
        chosen = (*options, *AS_CUPY)
        elsewhere = arch != cards.table()[cards.DEFAULT].arch
        with nvrtc.with_machine_code() if elsewhere else nullcontext():  # ptxas refuses what a target does not have
            ptx = emulator.compile_ptx(text, options=chosen, arch=arch, filename=filename, include=folders)
        self._kernel = emulator.load(ptx).kernel(entry)
        self._names = names

    def launch(self, grid: tuple[int, ...], block: tuple[int, ...], values: tuple[Any, ...], shared: int) -> None:
        self._kernel.launch(grid, block, values, names=self._names, shared=shared)
