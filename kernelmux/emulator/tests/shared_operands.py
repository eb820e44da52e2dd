"""Matrices as they lie in shared memory for wgmma and tcgen05.mma, byte by byte, and their descriptors."""

from dataclasses import dataclass

import numpy as np
import torch

TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
    "u8": torch.uint8,
}
MODE_BITS = {0: 0, 128: 1, 64: 2, 32: 3}
STEPS = 2  # instructions along K


@dataclass(frozen=True)
class Operand:
    """A matrix `[rows, K]` as it lies in shared memory."""

    image: np.ndarray
    descriptor: int
    step: int  # bytes from one instruction's part to the next


def describe(leading: int, stride: int, swizzle: int) -> int:
    return (leading >> 4 << 16) | (stride >> 4 << 32) | (MODE_BITS[swizzle] << 62)


def k_major(matrix: np.ndarray, swizzle: int) -> Operand:
    """Rows of `swizzle` bytes in patterns of eight; without swizzle core matrices of 8 rows by 16 bytes."""
    rows, width = matrix.shape[0], matrix.shape[1] * matrix.itemsize
    row, byte = np.arange(rows)[:, None], np.arange(width)[None, :]
    if swizzle:
        leading, stride = 16, 8 * swizzle
        step = rows * swizzle if width > swizzle else 32  # one column of patterns after the other, or along the line
        place = byte // swizzle * rows * swizzle + row // 8 * stride + row % 8 * swizzle + byte % swizzle
    else:
        leading, stride, step = 128, 8 * width, 256
        place = row // 8 * stride + byte // 16 * leading + row % 8 * 16 + byte % 16
    return Operand(_image(matrix, place, swizzle), describe(leading, stride, swizzle), step)


def mn_major(matrix: np.ndarray, swizzle: int) -> Operand:
    """Columns lie along the lines; eight values of k make a pattern."""
    rows, k = matrix.shape
    size = matrix.itemsize
    row, column, byte = np.arange(rows)[:, None, None], np.arange(k)[None, :, None], np.arange(size)[None, None, :]
    if swizzle:
        line = swizzle // size
        stride, leading = 8 * swizzle, k * swizzle
        place = row // line * leading + column // 8 * stride + column % 8 * swizzle + row % line * size + byte
        of_eight = stride
    else:
        unit = 16 // size
        stride, leading = 128, 8 * size * rows
        place = row // unit * stride + column // 8 * leading + column % 8 * 16 + row % unit * size + byte
        of_eight = leading
    step = k // STEPS // 8 * of_eight
    return Operand(_image(matrix, place.reshape(rows, -1), swizzle), describe(leading, stride, swizzle), step)


def _image(matrix: np.ndarray, place: np.ndarray, swizzle: int) -> np.ndarray:
    line_bits = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    place = place ^ ((place // 128 & line_bits) * 16)
    image = np.zeros(-(-(place.max() + 1) // 1024) * 1024, np.uint8)
    image[place] = np.ascontiguousarray(matrix).view(np.uint8).reshape(place.shape)
    return image


def random_matrix(kind: str, *shape: int) -> torch.Tensor:
    """Small integers: every product and sum of them is exact in every kind."""
    return torch.randint(0 if kind == "u8" else -3, 4, shape).to(TORCH[kind])


def bits_of(x: torch.Tensor) -> np.ndarray:
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()]).numpy()
