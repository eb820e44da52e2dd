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
THREADS, RESIDENT, ROWS = 256, 1, 0
RESULTS = 4  # of a row that a thread makes where it reads vectors
WIDTH = 8  # channels of a thread
COLUMN_ROWS = 2  # results of a thread that reads single elements, one below the other
LEAST_LOAD = 8  # bytes of a vector; narrower ones are not worth it
MOST_ROWS, MOST_RESULTS = 8, 16  # of a thread
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
    if _by_words(windows, strides, dtype) and (found := _words(windows, strides, dtype, offset, last)):
        return found
    rows_are_dense = (width == 1 or strides[3] == 1) and (windows.size[0] == 1 or strides[2] == width)
    if not last and rows_are_dense and (tile := _tile(windows, strides, dtype.itemsize)):
        return _staged(windows, strides, dtype, tile)
    return _direct(windows, strides, dtype, offset, last)


def _by_words(windows: Windows, strides: Strides, dtype: torch.dtype) -> bool:
    """Whether the kernels of max_pool2d.cu that compare words can run: their places and offsets must fit."""
    (h, w), (oh, ow) = windows.size, windows.counts
    lines = windows.kernel[0] + (MOST_ROWS - 1) * windows.stride[0]
    places = lines * w + MOST_RESULTS * windows.stride[1] + windows.kernel[1]
    units = windows.images * windows.channels * oh * ow
    reach = abs(strides[2]) * h + abs(strides[3]) * w
    small = windows.small and windows.stride[0] <= windows.kernel[0] and windows.stride[1] <= 2
    return small and (dtype.itemsize == 4 or places < 2**16) and max(units, reach) < 2**31 - BLOCK


def _words(windows: Windows, strides: Strides, dtype: torch.dtype, offset: int, last: bool) -> Launch | None:
    """Of channels side by side; of rows by vectors, where these are aligned; of rows by single elements."""
    wide, halves = ACCESS_BYTES // dtype.itemsize, 4 // dtype.itemsize
    if last:
        width = gcd(
            WIDTH, wide, offset // dtype.itemsize, windows.channels, *(s for i, s in enumerate(strides) if i != 1)
        )
        more = {"ROWS": ROWS or windows.rows_of_a_thread, "WIDTH": width, "CHANNELS": 1}
        return None if width < halves else _split(windows, strides, dtype, "max_pool2d_channels", width, more)
    if windows.size[1] > 1 and strides[3] != 1:
        return None
    load = gcd(wide, RESULTS * windows.stride[1], offset // dtype.itemsize, windows.size[1], *strides[:3])
    if load * dtype.itemsize >= LEAST_LOAD:
        more = {"RESULTS": RESULTS, "LOAD": load, "STORE": gcd(RESULTS, wide, windows.counts[1])}
        return _split(
            windows, strides, dtype, "max_pool2d_rows", RESULTS, {"ROWS": ROWS or windows.rows_of_a_thread, **more}
        )
    return _split(windows, strides, dtype, "max_pool2d_columns", 1, {"ROWS": COLUMN_ROWS}) if COLUMN_ROWS else None


def _split(
    windows: Windows, strides: Strides, dtype: torch.dtype, entry: str, columns: int, more: dict[str, int]
) -> Launch:
    """A launch of a kernel whose threads make so many rows of so many results, or of channels."""
    (oh, ow), last = windows.counts, "WIDTH" in more
    more = {**more, "BLOCK": THREADS, "RESIDENT": RESIDENT}
    down, across = cdiv(oh, more["ROWS"]), ow if last else cdiv(ow, columns)
    parts = windows.channels // columns if last else windows.channels
    units = windows.images * parts * across * down
    kernel = SOURCE.kernel(
        entry, "x* y* index* geometry:struct split:struct units:i32", **windows.defines(dtype, **more)
    )
    launch, geometry = kernel.bind(cdiv(units, THREADS), THREADS, units), windows.geometry(strides)
    split = divisor(across) + divisor(down) + divisor(parts) + struct.pack("3i", across, down, parts)
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
    words = int(_by_words(windows, strides, dtype))
    kernel = SOURCE.kernel("max_pool2d_staged", signature, **windows.defines(dtype, WORDS=words, BLOCK=THREADS))
    geometry, packed = windows.geometry(strides), windows.tile(together, rows, per_plane)
    return lambda x, y, index: kernel(blocks, THREADS, x, y, index, geometry, packed, shared=STAGED_BYTES)


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
