"""Runs the PTX of CUDA and Triton kernels on the CPU, with numpy, and checks what a GPU does not check.

What others may use is here: the names below, each imported at its first use, and the modules beside this file. The folders
are the emulator's inside.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelmux.emulator.compilers import triton_cache as triton_cache
    from kernelmux.emulator.compilers import triton_driver as triton_driver

_HOMES = {
    # compile and run
    "compile_ptx": "nvrtc",
    "compile_cubin": "nvrtc",
    "CompileError": "nvrtc",
    "load": "running.launch",
    "TensorMap": "tma.tensor_map",
    "Im2colMap": "tma.tensor_map",
    "triton_active": "compilers.triton_driver",
    # what is checked and how
    "checks": "settings",
    "time_limit": "settings",
    "block_order": "settings",
    "only_blocks": "settings",
    "EmulatorError": "errors",
    "RedundantStore": "memory.redundant_stores",
    # what happened
    "recorder": "launch_log",
    "trace": "tracing.collector",
    "block_coverage": "basic_blocks",
    # for programs that only ask what would be launched, and for `kernelmux doctor`
    "load_by": "running.launch",
    "cache_folder": "compilers.compile_cache",
}
_MODULES = {"triton_cache": "compilers.triton_cache", "triton_driver": "compilers.triton_driver"}  # these import Triton

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"kernelmux.emulator.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"kernelmux.emulator.{_HOMES[name]}"), name)
