"""The CUDA driver, for what neither torch nor CuPy wraps: launches with attributes, tensor maps, packed arguments.

Backends whose kernels are launched with a handle of the driver share this. Nothing is loaded before it is asked for.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

MAP_BYTES, _ALIGNMENT = 128, 64  # of a CUtensorMap
PROMOTION_128B, PROMOTION_256B = 2, 3  # CUtensorMapL2promotion: what a copy brings into the L2 cache at once
_MOST_KNOWN = 1024  # addresses of one kind of map
_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID

_FIRST_DRIVER = {12: 525, 13: 580}  # on Linux, by the major version of CUDA

Sizes = tuple[int, ...]


@cache
def driver() -> ctypes.CDLL:
    """The library; OSError on a machine without one."""
    return ctypes.CDLL("libcuda.so.1")


def version() -> tuple[int, int] | None:
    """The newest CUDA that the driver supports; None without a driver."""
    found = ctypes.c_int()
    try:
        status = driver().cuDriverGetVersion(ctypes.byref(found))
    except OSError:
        return None
    return None if status else (found.value // 1000, found.value % 1000 // 10)


def too_old(built_for: str | None) -> str | None:
    """One line if the driver is too old for a torch that was built for this CUDA ("13.0"), else None.

    A driver runs what was built for any minor version of a CUDA whose major version it supports.
    """
    supported = version()
    if not built_for or not supported or supported[0] >= int(built_for.partition(".")[0]):
        return None
    needed = int(built_for.partition(".")[0])
    wanted = f"version {_FIRST_DRIVER[needed]} or newer" if needed in _FIRST_DRIVER else f"one for CUDA {needed}"
    return (
        f"the NVIDIA driver is too old: it supports CUDA {supported[0]}.{supported[1]}, and torch was built for CUDA "
        f"{built_for}; expected {wanted}: install it, or a torch that was built for CUDA {supported[0]}"
    )


@cache
def launch_kernel_ex() -> Any:
    """The launch with attributes, which CuPy has not; called with the address of a configuration and of the arguments'
    pointers."""
    entry = driver().cuLaunchKernelEx
    entry.argtypes = [ctypes.c_void_p] * 4
    return entry


def refused(status: int) -> RuntimeError:
    """The error of a call of the driver that gave this status, in the driver's words."""
    found = []
    for say in (driver().cuGetErrorName, driver().cuGetErrorString):
        text = ctypes.c_char_p()
        say(status, ctypes.byref(text))
        found.append((text.value or b"").decode())
    return RuntimeError(": ".join(found) if found[0] else f"CUDA error: {status}")


class _Attribute(ctypes.Structure):  # CUlaunchAttribute: a number and a union of 64 bytes
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16)]


class _LaunchConfig(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [
        ("sizes", ctypes.c_uint * 7),  # grid, block, shared memory
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


class Configurations(dict[int, int]):
    """By raw stream, the address of what a launch has besides its kernel and arguments; it is never written to.

    sizes: grid, block (three each), bytes of dynamic shared memory. follows: the kernel may start before the one ahead
    of it has ended (programmatic dependent launch).
    """

    def __init__(self, sizes: Sizes, follows: bool) -> None:
        super().__init__()
        self.sizes, self.follows = sizes, follows
        self._kept: list[_LaunchConfig] = []

    def __missing__(self, stream: int) -> int:
        attribute = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION)
        attribute.value[0] = 1
        sizes = (ctypes.c_uint * 7)(*self.sizes)
        config = _LaunchConfig(sizes, stream, ctypes.pointer(attribute), int(self.follows))
        self._kept.append(config)
        self[stream] = ctypes.addressof(config)
        return self[stream]


class Frame:
    """Memory for the arguments of one launch, and the pointers to them that the driver takes.

    forms: of each argument in the struct module's letters, such as "Q" or "128s". fixed: values, by position, that are
    the same in every launch; `fill` takes all others, in order.
    """

    __slots__ = ("_array", "buffer", "pack_into", "pointers")

    def __init__(self, forms: Sequence[str], fixed: Mapping[int, Any]) -> None:
        given = [i for i in range(len(forms)) if i not in fixed]
        offsets: dict[int, int] = {}
        form = _extended("<", forms, given, offsets)
        self.pack_into = struct.Struct(form).pack_into
        whole = struct.Struct(_extended(form, forms, fixed, offsets))
        self.buffer = ctypes.create_string_buffer(whole.size)
        rest = _extended("<", forms, fixed, {})
        struct.pack_into(rest, self.buffer, struct.calcsize(form), *fixed.values())
        start = ctypes.addressof(self.buffer)
        self._array = (ctypes.c_void_p * len(forms))(*(start + offsets[i] for i in range(len(forms))))
        self.pointers = ctypes.addressof(self._array)

    def fill(self, values: Sequence[Any]) -> None:
        """struct.error or OverflowError for a number that is not of its argument's form."""
        self.pack_into(self.buffer, 0, *values)


def _extended(
    form: str, forms: Sequence[str], chosen: Sequence[int] | Mapping[int, Any], offsets: dict[int, int]
) -> str:
    """A struct format with the chosen arguments behind what it has; offsets: gets where each begins.

    Each begins at a multiple of 8 bytes: the driver is told where it is, so gaps do not matter.
    """
    for i in chosen:
        offsets[i] = struct.calcsize(form)
        form += forms[i]
        form += f"{-struct.calcsize(form) % 8}x"
    return form


def argument_bytes(handle: int) -> list[int]:
    """The bytes of each argument of a kernel; empty with a driver older than CUDA 12.4, which cannot say."""
    entry = getattr(driver(), "cuFuncGetParamInfo", None)
    found: list[int] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    at, end = ctypes.byref(offset), ctypes.byref(size)
    while entry and entry(ctypes.c_void_p(handle), ctypes.c_size_t(len(found)), at, end) == 0:
        found.append(size.value)
    return found


class Encoder(Protocol):
    """A kind of tensor map: all but the address."""

    def encode(self, at: int, address: int) -> int:
        """Write the map of a tensor at an address to the memory at `at`; the driver's status."""


class Tiled(NamedTuple):
    """Of copies of boxes. Everything but the pitches counts elements, the outermost axis first.

    data_type: a CUtensorMapDataType; pitches: bytes between neighbours, without those of the last axis; swizzle: a
    CUtensorMapSwizzle. Source: CUDA driver API, cuTensorMapEncodeTiled.
    """

    data_type: int
    shape: tuple[int, ...]
    pitches: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    promotion: int

    def encode(self, at: int, address: int) -> int:
        """What lies outside of the tensor reads as zero."""
        rank = len(self.shape)
        wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        status: int = driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(at),
            self.data_type,
            ctypes.c_uint32(rank),
            ctypes.c_void_p(address),
            wide(*self.shape[::-1]),
            wide(*self.pitches[::-1]),
            narrow(*self.box[::-1]),
            narrow(*(1,) * rank),
            0,
            self.swizzle,
            self.promotion,
            0,
        )
        return status


class TensorMaps(dict[int, bytes]):
    """Tensor maps that differ in their address alone, by address, as a launch takes them; ValueError from the driver.

    The first is encoded, which takes 17 us from Python on the host of an H200; the others are copies of it, in which the
    driver replaces the address. A map holds no memory of its tensor, so what was freed may be allocated again.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self._encoder, self._first = encoder, b""

    def __missing__(self, address: int) -> bytes:
        if len(self) >= _MOST_KNOWN:
            self.clear()
        room = ctypes.create_string_buffer(MAP_BYTES + _ALIGNMENT)
        at = -(-ctypes.addressof(room) // _ALIGNMENT) * _ALIGNMENT
        if self._first:
            ctypes.memmove(at, self._first, MAP_BYTES)
            status = driver().cuTensorMapReplaceAddress(ctypes.c_void_p(at), ctypes.c_void_p(address))
        else:
            status = self._encoder.encode(at, address)
        if status:
            raise ValueError(f"{refused(status)}: a tensor map at 0x{address:x}, {self._encoder}")
        found = self[address] = ctypes.string_at(at, MAP_BYTES)
        self._first = self._first or found
        return found
