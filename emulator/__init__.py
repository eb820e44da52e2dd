"""Runs the PTX of CUDA and Triton kernels on the CPU, with numpy, and checks what a GPU does not check."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelmux.emulator.compilers import triton_cache as triton_cache
    from kernelmux.emulator.compilers import triton_driver as triton_driver

_HOMES = {
    "checks": "settings",
    "time_limit": "settings",
    "block_order": "settings",
    "only_blocks": "settings",
    "load": "running.launch",
    "compile_ptx": "compilers.nvrtc",
    "compile_cubin": "compilers.nvrtc",
    "CompileError": "compilers.nvrtc",
    "TensorMap": "tma.tensor_map",
    "Im2colMap": "tma.tensor_map",
    "recorder": "compilers.launch_log",
    "trace": "tracing.collector",
    "triton_active": "compilers.triton_driver",
    "EmulatorError": "errors",
    "RedundantStore": "memory.redundant_stores",
}
_MODULES = {"triton_cache": "compilers.triton_cache", "triton_driver": "compilers.triton_driver"}  # these import Triton

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"kernelmux.emulator.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"kernelmux.emulator.{_HOMES[name]}"), name)
