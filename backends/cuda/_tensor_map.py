"""TMA descriptors: what the driver encodes for a CUDA tensor, what the emulator keeps for a CPU tensor."""

import ctypes
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

_DATA_TYPES = {  # CUtensorMapDataType
    torch.uint8: 0, torch.int8: 0, torch.int32: 4, torch.int64: 6, torch.float16: 6, torch.float32: 7,
    torch.float64: 8, torch.bfloat16: 9,
}  # fmt: skip
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes: CUtensorMapSwizzle
_L2_PROMOTION_256B = 3
_BYTES, _ALIGNMENT = 128, 64


class DeviceMap:
    """A driver-encoded descriptor: `value` is one 128-byte element, which CuPy passes by value."""

    __slots__ = ("index", "value")

    def __init__(self, value: np.ndarray, index: int):
        self.value, self.index = value, index


def tensor_map(tensor: torch.Tensor, box: tuple[int, ...], swizzle: int = 0) -> Any:
    """The TMA descriptor of `tensor` for loads and stores of `box` elements (in the order of the shape).

    The last dimension is contiguous, the other strides and the address multiples of 16 bytes, and the box's last
    extent at most `swizzle` bytes where it is not 0; the driver refuses anything else (ValueError). What lies outside
    the tensor reads as zero. Source: CUDA driver API, cuTensorMapEncodeTiled.
    """
    if not tensor.is_cuda:
        from kernelmux import emulator

        return emulator.TensorMap(tensor, box, swizzle)
    place = (tensor.data_ptr(), tensor.get_device(), tensor.dtype)
    return _encode(*place, tuple(tensor.shape), tensor.stride(), tuple(box), swizzle)


@lru_cache(maxsize=4096)  # encoding takes 17 us, a look-up 1 us; a map holds no memory of the tensor
def _encode(
    pointer: int, index: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...],
    box: tuple[int, ...], swizzle: int,
) -> DeviceMap:  # fmt: skip
    rank, size = len(shape), dtype.itemsize
    storage = np.zeros(_BYTES + _ALIGNMENT, np.uint8)
    start = -storage.ctypes.data % _ALIGNMENT
    value = storage[start : start + _BYTES].view(f"V{_BYTES}")
    wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
    pitches = _pitches(shape, strides, size)
    status = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(value.ctypes.data), _DATA_TYPES[dtype], ctypes.c_uint32(rank), ctypes.c_void_p(pointer),
        wide(*shape[::-1]), wide(*pitches), narrow(*box[::-1]), narrow(*(1,) * rank),
        0, _SWIZZLES[swizzle], _L2_PROMOTION_256B, 0,
    )  # fmt: skip
    if status:
        raise ValueError(
            f"cuTensorMapEncodeTiled: error {status} for {dtype} {shape}, strides {strides}, box {box}, "
            f"swizzle {swizzle}, address 0x{pointer:x}"
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


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
