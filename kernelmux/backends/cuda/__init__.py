"""CUDA C++ kernels, compiled by NVRTC: launched through CuPy on a GPU, run by the emulator on CPU tensors.

For backends elsewhere: `from kernelmux.backends.cuda import Source, Kernel, Tiles, bits_type, card, cdiv, ctype,
multiprocessors`; docs/backends_elsewhere.md shows how.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kernelmux.registry.backend import Backend
from kernelmux.registry.backend.package_versions import NotInstalled, not_installed


def unavailable(device: torch.device) -> str | None:
    """None, or what is missing to run CUDA kernels on tensors of `device`."""
    if device.type == "cuda":
        return not_installed("cupy", f"cupy-cuda{_cuda_of_torch()}x", ("linux", "win32"))
    from kernelmux.emulator import nvrtc

    reason = nvrtc.unavailable()
    return NotInstalled(reason) if reason and sys.platform != "darwin" else reason


def _cuda_of_torch() -> str:
    """The major version of CUDA that torch was built for, or of the newest CuPy."""
    return (torch.version.cuda or "13").partition(".")[0]


def compilers(device: torch.device) -> tuple[str, ...]:
    """NVRTC, which holds ptxas: the emulator's, on a GPU as well; CuPy's there, if that is not found."""
    from kernelmux.emulator import nvrtc

    if device.type == "cpu" or not nvrtc.unavailable():
        return (_line("the emulator", nvrtc.version(), nvrtc.place()),)
    version = importlib.import_module("cupy").cuda.nvrtc.getVersion()
    return (_line("CuPy", version, _loaded("libnvrtc.so")),)


def _line(user: str, version: tuple[int, int], place: str) -> str:
    return f"NVRTC {version[0]}.{version[1]} of {user}: {place}"


def _loaded(library: str) -> str:
    """Where the library of this name is that the process has loaded."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "place unknown"
    paths = (line.split(maxsplit=5)[-1] for line in maps.splitlines() if f"/{library}" in line)
    return ", ".join(dict.fromkeys(paths)) or "place unknown"


BACKEND = Backend(
    name="cuda",
    summary="CUDA C++ through CuPy",
    priority=30,
    unavailable=unavailable,
    emulates=True,
    replays=True,
    compilers=compilers,
)


if TYPE_CHECKING:
    from kernelmux.backends.cuda._launch.runtime import (
        Kernel,
        Source,
        Tiles,
        bits_type,
        card,
        cdiv,
        ctype,
        multiprocessors,
    )

__all__ = [
    "BACKEND",
    "Kernel",
    "Source",
    "Tiles",
    "bits_type",
    "card",
    "cdiv",
    "compilers",
    "ctype",
    "multiprocessors",
    "unavailable",
]


def __getattr__(name: str) -> Any:
    """The public names of the launch seam, imported when they are asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}._runtime"), name)
