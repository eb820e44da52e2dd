"""Largest elements of windows on CUDA: rows through shared memory, or 16 bytes of channels per access."""

import struct
from functools import lru_cache
from math import gcd

import torch

from kernelmux.backends.cuda._runtime import Source, cdiv
from kernelmux.backends.cuda._windows import (
    ACCESS_BYTES,
    BLOCK,
    BLOCKS,
    MOST_WINDOWS,
    RESULTS,
    Launch,
    Strides,
    Windows,
    balanced,
    counter,
    divisor,
)
from kernelmux.registry.backend import Implementation
from kernelmux.registry.memory_order import format_of
from kernelmux.registry.windows import Pair, four_strides, planes

SOURCE = Source(__file__)
STAGED_BYTES = 32 << 10  # shared memory of a block: six of them fit in a multiprocessor, 192 KiB in flight


def max_pool2d(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    windows, form = Windows(*planes(x), (x.shape[-2], x.shape[-1]), kernel, stride, padding), format_of(x)
    shape = (*x.shape[:-2], *windows.counts)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form)
    index = torch.empty(shape, dtype=torch.int32, device=x.device, memory_format=form)
    if y.numel():
        last = form == torch.channels_last
        _launch(windows, four_strides(x), x.dtype, x.data_ptr() % ACCESS_BYTES, last)(x, y, index)
    return y, index


@lru_cache(maxsize=4096)
def _launch(windows: Windows, strides: Strides, dtype: torch.dtype, offset: int, last: bool) -> Launch:
    width = windows.size[1]
    if not last and _aligned(windows, strides, dtype.itemsize, offset):
        return _rows(windows, strides, dtype)
    rows_are_dense = (width == 1 or strides[3] == 1) and (windows.size[0] == 1 or strides[2] == width)
    if not last and rows_are_dense and (tile := _tile(windows, strides, dtype.itemsize)):
        return _staged(windows, strides, dtype, tile)
    return _direct(windows, strides, dtype, offset, last)


def _aligned(windows: Windows, strides: Strides, size: int, offset: int) -> bool:
    """Whether planes of 16-bit elements have no gaps, and all rows start at multiples of 16 bytes."""
    (h, w), (_, kw), (_, sw) = windows.size, windows.kernel, windows.stride
    even = windows.images == 1 or strides[0] == windows.channels * strides[1]
    dense = even and strides[2:] == (w, 1) and w % RESULTS == 0 and strides[1] % RESULTS == 0 and not offset
    small = windows.small and sw <= 2 and kw <= RESULTS and windows.images * windows.channels * h * w < 2**34
    return size == 2 and dense and small


def _rows(windows: Windows, strides: Strides, dtype: torch.dtype) -> Launch:
    (oh, ow), rows = windows.counts, windows.rows_of_a_thread
    across, down = cdiv(ow, RESULTS), cdiv(oh, rows)
    units = windows.images * windows.channels * across * down
    signature = "x* y* index* geometry:struct split:struct units:i32"
    kernel = SOURCE.kernel("max_pool2d_rows", signature, **windows.defines(dtype, ROWS=rows, PIECE=gcd(RESULTS, ow)))
    launch, geometry = kernel.bind(cdiv(units, BLOCK), BLOCK, units), windows.geometry(strides)
    split = divisor(across) + divisor(down) + struct.pack("2i", across, down)
    return lambda x, y, index: launch(x, y, index, geometry, split)


def _tile(windows: Windows, strides: Strides, size: int) -> tuple[int, int] | None:
    """Planes and rows of windows of a block; None where the rows of one window are too many for shared memory."""
    (h, w), (oh, ow), planes = windows.size, windows.counts, windows.images * windows.channels
    elements = STAGED_BYTES // size - ACCESS_BYTES // size  # what lies before the first aligned address stays free
    if h * w <= elements and oh * ow <= MOST_WINDOWS:
        dense = strides[1] == h * w and (windows.images == 1 or strides[0] == windows.channels * h * w)
        most = min(elements // (h * w), MOST_WINDOWS // (oh * ow), max(planes // BLOCKS, 1))
        return (most if dense else 1), oh
    rows = min((elements // w - windows.kernel[0]) // windows.stride[0] + 1, MOST_WINDOWS // ow)
    return (1, balanced(oh, min(rows, oh))) if rows >= 1 else None


def _staged(windows: Windows, strides: Strides, dtype: torch.dtype, tile: tuple[int, int]) -> Launch:
    together, rows = tile
    per_plane = cdiv(windows.counts[0], rows)
    blocks = cdiv(windows.images * windows.channels, together) * per_plane
    signature = "x* y* index* geometry:struct tile:struct"
    kernel = SOURCE.kernel("max_pool2d_staged", signature, **windows.defines(dtype))
    geometry, packed = windows.geometry(strides), windows.tile(together, rows, per_plane)
    return lambda x, y, index: kernel(blocks, BLOCK, x, y, index, geometry, packed, shared=STAGED_BYTES)


def _direct(windows: Windows, strides: Strides, dtype: torch.dtype, offset: int, last: bool) -> Launch:
    steps = (windows.channels, *(s for i, s in enumerate(strides) if i != 1))
    widest = gcd(ACCESS_BYTES, offset) // dtype.itemsize
    width = gcd(widest, *steps) if last else 1
    oh, ow = windows.counts
    units = windows.images * windows.channels * oh * ow // width
    more = {"CHANNELS": int(last), "WIDTH": width, "INDEX": counter(units)}
    kernel = SOURCE.kernel(
        "max_pool2d_direct", "x* y* index* geometry:struct units:i64", **windows.defines(dtype, **more)
    )
    launch, geometry = kernel.bind(cdiv(units, BLOCK), BLOCK, units), windows.geometry(strides)
    return lambda x, y, index: launch(x, y, index, geometry)


VARIANTS = {
    "windows": Implementation(
        max_pool2d, "rows go through shared memory once, or 16 bytes of channels per access; no copy of either format"
    )
}
