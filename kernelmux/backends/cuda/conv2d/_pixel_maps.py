"""Maps of images for copies by TMA's im2col mode."""

import ctypes
from typing import Any, NamedTuple

import torch

from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import Tiles, cdiv
from kernelmux.backends.cuda._launch.tensor_map import DATA_TYPES
from kernelmux.backends.cuda.conv2d._pixel_copies import VECTOR
from kernelmux.backends.cuda.conv2d._problem import ConvolutionAxis
from kernelmux.backends.cuda.matmul._wgmma import LINE
from kernelmux.registry.util.cuda_driver import PROMOTION_256B, Encoder, driver

STEP = 64  # channels: 128 bytes
CORNERS = range(-128, 128)  # of a map of two axes of pixels
_SWIZZLE_128B = 3  # CUtensorMapSwizzle


def corners(axis: ConvolutionAxis) -> tuple[int, int]:
    """Of the box over which the first tap walks: where it begins, and where it ends, from the end of the image."""
    first = -axis.padding
    return first, first + (axis.positions - 1) * axis.stride + 1 - axis.size


def channels_last(x: Layout) -> tuple[int, ...]:
    """Strides of [N, H, W, C]; an axis of length 1 has that of a tensor without gaps, but between pixels of 16 bytes."""
    _, c, rows, columns = x.shape
    pixel = cdiv(c, VECTOR) * VECTOR
    dense = (pixel * columns * rows, pixel * columns, pixel)
    return *(x.strides[axis] if x.shape[axis] > 1 else s for axis, s in zip((0, 2, 3), dense, strict=True)), 1


class _Images(NamedTuple):
    """An `Encoder` of maps for copies of `pixels` pixels, STEP channels of each; pitches: bytes, as `Tiled` has them."""

    data_type: int
    shape: tuple[int, ...]
    pitches: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    pixels: int
    steps: tuple[int, int]

    def encode(self, at: int, address: int) -> int:
        wide, two = ctypes.c_uint64 * 4, ctypes.c_int * 2
        status: int = driver().cuTensorMapEncodeIm2col(
            ctypes.c_void_p(at), self.data_type, ctypes.c_uint32(4), ctypes.c_void_p(address),
            wide(*self.shape[::-1]), wide(*self.pitches[::-1]), two(*self.lower[::-1]), two(*self.upper[::-1]),
            ctypes.c_uint32(STEP), ctypes.c_uint32(self.pixels), (ctypes.c_uint32 * 4)(1, *self.steps[::-1], 1),
            0, _SWIZZLE_128B, PROMOTION_256B, 0,
        )  # fmt: skip
        return status


class PixelMaps(Tiles):
    """Maps of images [N, C, H, W], channels contiguous, for copies of `pixels` pixels, STEP channels of each, at a tap.

    The first pixel is that of a position; the others are those of the positions that follow, row by row, then in the
    next image. What lies outside of an image is zero. ValueError for what the driver refuses. Source: CUDA driver API,
    cuTensorMapEncodeIm2col; PTX ISA, "im2col mode".
    """

    def __init__(self, image: Layout, h: ConvolutionAxis, w: ConvolutionAxis, pixels: int):
        n, c, rows, columns = image.shape
        sizes = (n, rows, columns, c)
        super().__init__(sizes, channels_last(image), (1, 1, pixels, STEP), LINE)
        self._lower, self._upper = zip(corners(h), corners(w), strict=True)
        self._steps, self._pixels = (h.stride, w.stride), pixels

    def of(self, tensor: torch.Tensor) -> Any:
        """The map of the images of this shape and these strides that start where `tensor` does."""
        if tensor.is_cuda:
            return super().of(tensor)
        from kernelmux import emulator

        images = tensor.as_strided(self._shape, self._strides)
        at = self._lower, self._upper, STEP, self._pixels
        return emulator.Im2colMap(images, *at, LINE, steps=self._steps)

    def _encoder(self, dtype: torch.dtype) -> Encoder:
        pitches = tuple(stride * dtype.itemsize for stride in self._strides[:-1])
        return _Images(DATA_TYPES[dtype], self._shape, pitches, self._lower, self._upper, self._pixels, self._steps)
