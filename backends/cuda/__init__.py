"""CUDA C++ kernels, compiled by NVRTC: launched through CuPy on a GPU, run by the emulator on CPU tensors."""

from __future__ import annotations

import importlib.util

import torch

from kernelmux.registry.backend import Backend


def unavailable(device: torch.device) -> str | None:
    """None, or what is missing to run CUDA kernels on tensors of `device`."""
    if device.type == "cuda":
        missing = importlib.util.find_spec("cupy") is None
        return 'the package cupy is not installed (pip install "kernelmux[cuda]")' if missing else None
    from kernelmux.emulator import nvrtc

    return nvrtc.unavailable()


BACKEND = Backend(name="cuda", summary="CUDA C++ through CuPy", priority=30, unavailable=unavailable, emulates=True)
