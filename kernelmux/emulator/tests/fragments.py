"""Matrices as the registers of a warp, by a table of which lane holds which element."""

from collections.abc import Callable

import numpy as np

Place = Callable[[int, int], tuple[int, int]]  # lane and element -> row and column

BITS = {
    "f64": 64,
    "f32": 32,
    "s32": 32,
    "tf32": 32,
    "f16": 16,
    "bf16": 16,
    "u16": 16,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
}


def packed(matrices: np.ndarray, place: Place, count: int, kind: str) -> np.ndarray:
    """Fragments `[warps, 32, registers]` of matrices `[warps, rows, columns]`, the lowest element in the lowest bits."""
    chosen = np.array([[place(lane, i) for i in range(count)] for lane in range(32)])
    elements = matrices[:, chosen[..., 0], chosen[..., 1]]
    if kind in ("f64", "f32", "s32"):
        return np.ascontiguousarray(elements)
    if kind == "f16":
        return np.ascontiguousarray(elements, np.float16).view(np.uint32)
    bits, per = BITS[kind], 32 // BITS[kind]
    fields = (elements.astype(np.int64) & ((1 << bits) - 1)).reshape(*elements.shape[:2], -1, per)
    return np.ascontiguousarray((fields << bits * np.arange(per)).sum(-1), np.uint32)


def unpacked(words: np.ndarray, place: Place, count: int, shape: tuple[int, int], kind: str) -> np.ndarray:
    """The inverse of `packed`."""
    elements = words.view(np.float16) if kind == "f16" else words
    result = np.zeros((len(words), *shape), elements.dtype)
    for lane in range(32):
        for i in range(count):
            result[:, place(lane, i)[0], place(lane, i)[1]] = elements[:, lane, i]
    return result
