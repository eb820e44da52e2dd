"""Runs the PTX of CUDA and Triton kernels on the CPU, with numpy, and checks what a GPU does not check."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "checks": "settings",
    "time_limit": "settings",
    "block_order": "settings",
    "only_blocks": "settings",
    "load": "launch",
    "compile_ptx": "nvrtc",
    "compile_cubin": "nvrtc",
    "CompileError": "nvrtc",
    "TensorMap": "tensor_map",
    "Im2colMap": "tensor_map",
    "recorder": "recording",
    "trace": "tracing.collector",
    "triton_active": "triton_driver",
    "EmulatorError": "errors",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"kernelmux.emulator.{_HOMES[name]}"), name)
