"""Small arrays for launches, aligned like memory of a GPU; the same numbers at every call."""

from typing import Any

import numpy as np

ALIGNMENT = 256  # bytes, of every allocation on a GPU


def aligned(values: Any) -> np.ndarray:
    """A copy that begins at a multiple of the alignment."""
    values = np.ascontiguousarray(values)
    memory = np.empty(values.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    copy: np.ndarray = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def ramp(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """0, 1, 2, …"""
    return aligned(np.arange(np.prod(shape), dtype=dtype).reshape(shape))


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Normal numbers."""
    return aligned(np.random.default_rng(int(np.prod(shape))).standard_normal(shape).astype(dtype))


def empty(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An output that was never written: all bits set, which is NaN in every float type."""
    made = aligned(np.zeros(shape, dtype))
    made.view(np.uint8).fill(0xFF)
    return made
