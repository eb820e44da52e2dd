"""A stand-in for libcuda: launches are kept, tensor maps are descriptions."""

# ruff: noqa: N802  (the driver's names)

from __future__ import annotations

import ctypes
import struct
from typing import Any

from kernelmux.registry.util import cuda_driver

_MAP = struct.Struct("QQ")  # address, number of its description


class FakeCuda:
    """sizes: bytes of each argument of the kernel that is launched next; status: what calls of the driver give."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.status = 0
        self.launches: list[tuple[tuple[int, ...], int, list[bytes]]] = []
        self.encoded: list[tuple[Any, ...]] = []
        self.replaced = 0
        self.follows: list[bool] = []

    def cuLaunchKernelEx(self, config: int, handle: Any, pointers: int, extra: None) -> int:
        found = cuda_driver._LaunchConfig.from_address(config)
        self.follows.append(bool(found.count))
        addresses = (ctypes.c_void_p * len(self.sizes)).from_address(pointers)
        values = [ctypes.string_at(at, size) for at, size in zip(addresses, self.sizes, strict=True)]
        self.launches.append((tuple(found.sizes), found.stream or 0, values))
        return self.status

    def cuFuncGetParamInfo(self, handle: Any, index: Any, offset: Any, size: Any) -> int:
        if index.value >= len(self.sizes):
            return 1
        size._obj.value = self.sizes[index.value]
        return 0

    def cuTensorMapEncodeTiled(
        self, at: Any, kind: int, rank: Any, address: Any, shape: Any, pitches: Any, box: Any, steps: Any, *rest: int
    ) -> int:
        interleave, swizzle, _, fill = rest
        assert at.value % 64 == 0 and not interleave and not fill
        described = (tuple(shape)[::-1], tuple(pitches)[-2::-1], tuple(box)[::-1], swizzle)
        self.encoded.append(described)
        ctypes.memmove(at, _MAP.pack(address.value, len(self.encoded) - 1), _MAP.size)
        return self.status

    def cuTensorMapReplaceAddress(self, at: Any, address: Any) -> int:
        assert at.value % 64 == 0
        ctypes.memmove(at, struct.pack("Q", address.value), 8)
        self.replaced += 1
        return self.status

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_INVALID_CONTEXT" if status == 201 else None
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"invalid device context" if status == 201 else None
        return 0

    def described(self, value: bytes) -> tuple[Any, ...]:
        """Address, sizes, pitches in bytes, box and swizzle of a tensor map."""
        address, number = _MAP.unpack_from(value)
        return address, *self.encoded[number]


REGISTERS, SPILLED, THREADS, STATIC, OPTIN = 40, 64, 512, 1024, 232448
OF_FUNCTION = {4: REGISTERS, 3: SPILLED, 0: THREADS, 1: STATIC}


class LoadingCuda(FakeCuda):
    """Loads modules too, and notes what is asked of it."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.context, self.asked = context, list[tuple[Any, ...]]()

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.context
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 77
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.context = context.value
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        self.asked.append(("load", image))
        module._obj.value = 11
        return self.status

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self.asked.append(("function", module.value, name))
        function._obj.value = 12
        return 0

    def cuFuncSetCacheConfig(self, function: Any, config: int) -> int:
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        self.asked.append(("attribute", function.value, attribute, value))
        return 0

    def cuDeviceGetAttribute(self, found: Any, attribute: int, device: Any) -> int:
        found._obj.value = OPTIN if attribute == 97 else attribute
        return 0

    def cuFuncGetAttribute(self, found: Any, attribute: int, function: Any) -> int:
        found._obj.value = OF_FUNCTION[attribute]
        return 0

    def cuModuleUnload(self, module: Any) -> int:
        self.asked.append(("unload", module.value))
        return 0
