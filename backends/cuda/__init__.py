"""CUDA C++ kernels, compiled by NVRTC: launched through CuPy on a GPU, run by the emulator on CPU tensors.

For backends elsewhere: `from kernelmux.backends.cuda import Source, Kernel, Tiles, bits_type, cdiv, ctype,
multiprocessors`; docs/backends_elsewhere.md shows how.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch

from kernelmux.registry.backend import Backend


def unavailable(device: torch.device) -> str | None:
    """None, or what is missing to run CUDA kernels on tensors of `device`."""
    if device.type == "cuda":
        missing = importlib.util.find_spec("cupy") is None
        return 'the package cupy is not installed (pip install "kernelmux[cuda]")' if missing else None
    from kernelmux.emulator import nvrtc

    return nvrtc.unavailable()


BACKEND = Backend(
    name="cuda",
    summary="CUDA C++ through CuPy",
    priority=30,
    unavailable=unavailable,
    emulates=True,
    replays=True,
)


if TYPE_CHECKING:
    from kernelmux.backends.cuda._runtime import Kernel, Source, Tiles, bits_type, cdiv, ctype, multiprocessors

__all__ = ["BACKEND", "Kernel", "Source", "Tiles", "bits_type", "cdiv", "ctype", "multiprocessors", "unavailable"]


def __getattr__(name: str) -> Any:
    """The public names of the launch seam, imported when they are asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}._runtime"), name)
