"""TMA descriptors: what the driver encodes for a CUDA tensor, what the emulator keeps for a CPU tensor."""

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from kernelmux.backends.cuda._driver import driver
from kernelmux.registry import replay

_DATA_TYPES = {  # CUtensorMapDataType
    torch.uint8: 0, torch.int8: 0, torch.int32: 3, torch.int64: 5, torch.float16: 6, torch.float32: 7,
    torch.float64: 8, torch.bfloat16: 9,
}  # fmt: skip
_TF32 = 11  # fp32 in memory, rounded to tf32 on the way
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes: CUtensorMapSwizzle
_L2_PROMOTION_256B = 3
_BYTES, _ALIGNMENT = 128, 64
_MOST_KNOWN = 1024  # addresses; an encoding takes 17 us and a quarter of a kilobyte


class DeviceMap:
    """A driver-encoded descriptor: `value` is one 128-byte element, which CuPy passes by value."""

    __slots__ = ("index", "value")

    def __init__(self, value: np.ndarray, index: int):
        self.value, self.index = value, index


class Tiles:
    """TMA descriptors for tensors that differ only in their address, by address: a look-up instead of an encoding.

    Loads and stores move `box` elements (in the order of the shape). The last stride is 1, the others and the address
    are multiples of 16 bytes, and the box's last extent is at most `swizzle` bytes where that is not 0; the driver
    refuses anything else (ValueError). What lies outside the tensor reads as zero. `tf32`: fp32 is rounded on the way
    (by the copy engine; the emulator leaves that to the products). Source: CUDA driver API, cuTensorMapEncodeTiled.
    """

    def __init__(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int = 0,
        tf32: bool = False,
    ):
        self._shape, self._strides = tuple(shape), tuple(strides)
        self._box, self._swizzle, self._tf32 = tuple(box), swizzle, tf32
        self._known: dict[tuple[int, torch.dtype], DeviceMap] = {}  # a map holds no memory of the tensor

    def of(self, tensor: torch.Tensor) -> Any:
        """The descriptor of the array of this shape and these strides that starts where `tensor` does."""
        if not tensor.is_cuda:
            from kernelmux import emulator

            return emulator.TensorMap(tensor, self._box, self._swizzle, shape=self._shape, strides=self._strides)
        found = self._at(tensor.dtype, tensor.get_device(), tensor.data_ptr())
        replay.stands_for(found, tensor, partial(self._packed, tensor.dtype, tensor.get_device()))
        return found

    def _packed(self, dtype: torch.dtype, index: int, pointer: int) -> bytes:
        """The descriptor of such a tensor at an address of device `index`, as a launch takes it."""
        return self._at(dtype, index, pointer).value.tobytes()

    def _at(self, dtype: torch.dtype, index: int, pointer: int) -> DeviceMap:
        found = self._known.get((pointer, dtype))
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[pointer, dtype] = self._encode(dtype, index, pointer)
        return found

    def _encode(self, dtype: torch.dtype, index: int, pointer: int) -> DeviceMap:
        rank, size = len(self._shape), dtype.itemsize
        storage = np.zeros(_BYTES + _ALIGNMENT, np.uint8)
        start = -storage.ctypes.data % _ALIGNMENT
        value = storage[start : start + _BYTES].view(f"V{_BYTES}")
        wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        status = driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(value.ctypes.data), _TF32 if self._tf32 else _DATA_TYPES[dtype],
            ctypes.c_uint32(rank), ctypes.c_void_p(pointer), wide(*self._shape[::-1]),
            wide(*_pitches(self._shape, self._strides, size)), narrow(*self._box[::-1]), narrow(*(1,) * rank),
            0, _SWIZZLES[self._swizzle], _L2_PROMOTION_256B, 0,
        )  # fmt: skip
        if status:
            raise ValueError(
                f"cuTensorMapEncodeTiled: error {status} for {dtype} {self._shape}, strides {self._strides}, "
                f"box {self._box}, swizzle {self._swizzle}, address 0x{pointer:x}"
            )
        return DeviceMap(value, index)


def _pitches(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> list[int]:
    """Bytes between neighbours, innermost axis left out; an axis of length 1 gets one that the driver takes."""
    pitches: list[int] = []
    extent = shape[-1] * size
    for length, stride in zip(shape[-2::-1], strides[-2::-1], strict=True):
        pitches.append(stride * size if length > 1 else -(-extent // 16) * 16)
        extent = pitches[-1] * length
    return pitches
