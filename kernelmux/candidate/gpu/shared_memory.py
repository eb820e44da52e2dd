"""Memory of a GPU that two processes have, handed over as a descriptor of a file.

CUDA's handles for memory of another process (cudaIpc) go by names that walls around a process may hide; a descriptor goes
through a socket. Source: CUDA driver API, virtual memory management.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import partial
from typing import Any

import torch

from kernelmux.registry.util.cuda_driver import driver, refused

PINNED, ON_DEVICE, AS_FILE, READ_WRITE = 1, 1, 1, 3  # CUmemAllocationType and what follows it
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class _MemoryLocation(ctypes.Structure):  # CUmemLocation
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _MemoryLocation),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", _MemoryLocation), ("flags", ctypes.c_int)]


class _Bytes:
    """What torch takes for memory of a GPU; a tensor on it keeps it."""

    def __init__(self, address: int, size: int, region: GpuRegion) -> None:
        self.region = region
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class GpuRegion:
    """Bytes of a GPU that both sides have. file: what the other side opens them by, which belongs to the region.

    Without a file the memory is new, and holds anything. RuntimeError from the driver, torch.OutOfMemoryError if
    the GPU has no room.
    """

    kind = "cuda"

    def __init__(self, size: int, device: torch.device, file: int | None = None) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            torch.empty(1, device=device)  # the context of the device is the current one
            self.size = size
            where = _MemoryLocation(ON_DEVICE, torch.cuda.current_device())
            wanted = _Properties(PINNED, AS_FILE, where, None, (ctypes.c_ubyte * 8)())
            unit = ctypes.c_size_t()
            _do("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(wanted), ctypes.c_int(0))
            self._whole = ctypes.c_size_t(-(-max(size, 1) // unit.value) * unit.value)
            self._handle, address = ctypes.c_uint64(), ctypes.c_uint64()
            none = ctypes.c_uint64(0)
            if file is None:
                create = partial(
                    _do, "cuMemCreate", ctypes.byref(self._handle), self._whole, ctypes.byref(wanted), none
                )
                try:
                    create()
                except torch.OutOfMemoryError:  # torch may keep some that it does not use
                    torch.cuda.empty_cache()
                    create()
                made = ctypes.c_int()
                _do("cuMemExportToShareableHandle", ctypes.byref(made), self._handle, ctypes.c_int(AS_FILE), none)
                self.file = made.value
            else:
                self.file = file
                given = ctypes.c_void_p(file)
                _do("cuMemImportFromShareableHandle", ctypes.byref(self._handle), given, ctypes.c_int(AS_FILE))
            _do("cuMemAddressReserve", ctypes.byref(address), self._whole, ctypes.c_size_t(0), none, none)
            self._address = address
            _do("cuMemMap", address, self._whole, ctypes.c_size_t(0), self._handle, none)
            access = _Access(where, READ_WRITE)
            _do("cuMemSetAccess", address, self._whole, ctypes.byref(access), ctypes.c_size_t(1))
            self._device = device

    def storage(self) -> torch.UntypedStorage:
        """The memory as torch has it."""
        seen = torch.as_tensor(_Bytes(self._address.value, self.size, self), device=self._device)
        return seen.untyped_storage()

    def close(self) -> None:
        """Give the descriptor back; the memory goes with the last tensor on it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __del__(self) -> None:
        if hasattr(self, "_device") and not sys.is_finalizing():  # the end of the process gives it back
            torch.cuda.synchronize(self._device)  # to unmap is in no order with work of the GPU
            driver().cuMemUnmap(self._address, self._whole)
            driver().cuMemAddressFree(self._address, self._whole)
            driver().cuMemRelease(self._handle)


def _do(name: str, *arguments: Any) -> None:
    if status := getattr(driver(), name)(*arguments):
        kind = torch.OutOfMemoryError if status == OUT_OF_MEMORY else RuntimeError
        raise kind(f"{name}: {refused(status)}")
