"""TMA descriptors: what the driver encodes for a CUDA tensor, what the emulator keeps for a CPU tensor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.registry.call import launch_replay
from kernelmux.registry.util.cuda_driver import PROMOTION_256B, Encoder, TensorMaps, Tiled

DATA_TYPES = {  # CUtensorMapDataType
    torch.uint8: 0, torch.int8: 0, torch.int32: 3, torch.int64: 5, torch.float16: 6, torch.float32: 7,
    torch.float64: 8, torch.bfloat16: 9,
}  # fmt: skip
_TF32 = 11  # fp32 in memory, rounded to tf32 on the way
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes: CUtensorMapSwizzle


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """A descriptor in the driver's encoding, for a tensor on the GPU of this index."""

    value: bytes
    index: int


class Tiles:
    """TMA descriptors for tensors that differ only in their address and dtype; each is encoded once.

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
        self._maps: dict[torch.dtype, TensorMaps] = {}

    def of(self, tensor: torch.Tensor) -> Any:
        """The descriptor of the array of this shape and these strides that starts where `tensor` does."""
        if not tensor.is_cuda:
            from kernelmux import emulator

            return emulator.TensorMap(tensor, self._box, self._swizzle, shape=self._shape, strides=self._strides)
        if tensor.dtype not in self._maps:
            self._maps[tensor.dtype] = TensorMaps(self._encoder(tensor.dtype))
        maps = self._maps[tensor.dtype]
        found = DeviceMap(maps[tensor.data_ptr()], tensor.get_device())
        launch_replay.stands_for(found, tensor, maps.__getitem__)
        return found

    def _encoder(self, dtype: torch.dtype) -> Encoder:
        data_type = _TF32 if self._tf32 else DATA_TYPES[dtype]
        pitches = _pitches(self._shape, self._strides, dtype.itemsize)
        return Tiled(data_type, self._shape, pitches, self._box, _SWIZZLES[self._swizzle], PROMOTION_256B)


def _pitches(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Bytes between neighbours, innermost axis left out; an axis of length 1 gets one that the driver takes."""
    pitches: list[int] = []
    extent = shape[-1] * size
    for length, stride in zip(shape[-2::-1], strides[-2::-1], strict=True):
        pitches.append(stride * size if length > 1 else -(-extent // 16) * 16)
        extent = pitches[-1] * length
    return tuple(pitches[::-1])
