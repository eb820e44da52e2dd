"""Triton's driver, which asks a C compiler for nothing before that is needed.

Triton 3.6 has a module in C built when it meets a GPU, and one for the launcher of each signature; later versions have
the first alone. That took 1.2 s of a first call on an AMD EPYC. Loading a kernel and asking for properties of the GPU
takes no more than the CUDA driver, and kernels are launched by that as well (`packed`).
"""

from __future__ import annotations

import os
from ctypes import byref, c_int, c_void_p
from typing import Any

from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils
from triton.runtime import driver

from kernelmux.registry.util import cuda_driver

# CUdevice_attribute and CUfunction_attribute
_SHARED_OPTIN = 97
_PROPERTIES = {
    "max_shared_mem": _SHARED_OPTIN,
    "max_num_regs": 12,
    "multiprocessor_count": 16,
    "warpSize": 10,
    "sm_clock_rate": 13,
    "mem_clock_rate": 36,
    "mem_bus_width": 37,
}
_THREADS, _STATIC_SHARED, _LOCAL, _REGISTERS, _DYNAMIC_SHARED = 0, 1, 3, 4, 8
_PREFER_SHARED = 1  # CUfunc_cache
_USUAL_SHARED = 48 << 10


def install() -> None:
    """Has Triton use this driver, if it has not yet met an NVIDIA GPU, and would choose that."""
    unused = getattr(driver, "_active", driver) is None and getattr(driver, "_default", driver) is None
    if unused and os.environ.get("TRITON_DEFAULT_BACKEND", "nvidia") == "nvidia" and CudaDriver.is_active():
        driver.set_active(PromptDriver())


class PromptDriver(CudaDriver):  # type: ignore[misc]  # Triton has no types
    """Triton's driver for NVIDIA GPUs, with parts that are built when they are asked for."""

    def __init__(self) -> None:
        super(CudaDriver, self).__init__()
        self.utils = PromptUtilities()
        self.launcher_cls = PromptLauncher


class PromptLauncher(CudaLauncher):  # type: ignore[misc]
    """Triton's launcher of a compiled kernel, made by the first launch."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self._given = src, metadata

    def _become(self) -> Any:
        given = self._given
        CudaUtils()  # which tells Triton's module the types that launchers look for
        self.__class__ = CudaLauncher
        CudaLauncher.__init__(self, *given)
        return self

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self._become()(*args, **more)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._become(), name)


class PromptUtilities:
    """What Triton asks of the CUDA driver; of the rest it has its own module, built when it is asked for."""

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spilled words, and the most threads of a block, as Triton's own returns them."""
        _ensure_context(device)
        module, function = c_void_p(), c_void_p()
        _call("cuModuleLoadData", byref(module), cubin)
        _call("cuModuleGetFunction", byref(function), module, name.encode())
        if shared > _USUAL_SHARED:
            _call("cuFuncSetCacheConfig", function, _PREFER_SHARED)
            most = _of_device(_SHARED_OPTIN, device) - _of_function(_STATIC_SHARED, function)
            _call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, most)
        spilled = _of_function(_LOCAL, function) // 4
        registers, threads = _of_function(_REGISTERS, function), _of_function(_THREADS, function)
        return module.value or 0, function.value or 0, registers, spilled, threads

    def unload_module(self, module: int) -> None:
        _call("cuModuleUnload", c_void_p(module))

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {name: _of_device(attribute, device) for name, attribute in _PROPERTIES.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(CudaUtils(), name)


def _call(name: str, *given: Any) -> None:
    status = getattr(cuda_driver.driver(), name)(*given)
    if status:
        raise cuda_driver.refused(status)


def _of_device(attribute: int, index: int) -> int:
    found, device = c_int(), c_int()
    _call("cuDeviceGet", byref(device), index)
    _call("cuDeviceGetAttribute", byref(found), attribute, device)
    return found.value


def _of_function(attribute: int, function: c_void_p) -> int:
    found = c_int()
    _call("cuFuncGetAttribute", byref(found), attribute, function)
    return found.value


def _ensure_context(index: int) -> None:
    """Has a thread that never called the GPU use the context that all libraries share."""
    context, device = c_void_p(), c_int()
    _call("cuCtxGetCurrent", byref(context))
    if not context:
        _call("cuDeviceGet", byref(device), index)
        _call("cuDevicePrimaryCtxRetain", byref(context), device)
        _call("cuCtxSetCurrent", context)
