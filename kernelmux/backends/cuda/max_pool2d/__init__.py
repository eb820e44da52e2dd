"""Largest elements of windows on CUDA: pairs of 16-bit elements at once, in vectors of a row or of channels."""

import struct
from math import gcd

import torch

from kernelmux.backends.cuda._families.windows import (
    ACCESS_BYTES,
    BLOCK,
    BLOCKS,
    MOST_WINDOWS,
    UNROLLED,
    Launch,
    Strides,
    Windows,
    balanced,
    counter,
    divisor,
)
from kernelmux.backends.cuda._launch.runtime import Source, cdiv
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Pair, four_strides, planes
from kernelmux.registry.util.cards import remembered
from kernelmux.registry.util.memory_format import format_of

SOURCE = Source(__file__)
WORDS = Source(__file__, "max_pool2d_words.cu")
THREADS = 128  # of a block of the kernels that compare words; H200, 3 x 3 windows: 27.0 us, with 256 threads 27.5
RESULTS = 4  # of a row that a thread makes from vectors: neighbours write side by side; with 8 of them 28.0 us
# Of rows that start anywhere, which are read in words that are shifted. H200, 64 x 96 x 113 x 113, 3 x 3, stride 2: 91 us,
# by single elements 115, with 4 results of a row 135 (107 of one row of windows).
PAIR = 2
WIDTH = 4  # channels of a thread: 26.8 us, with 8 of them 27.2
ROWS = 2  # results of a thread one below the other, of channels and of rows that are not aligned
# Results up to which a thread makes one for one word of channels, and planes of 16 bits come from single elements; and up
# to which it makes one row of channels, and rows that begin anywhere come from single elements. What counts then is how
# long a thread takes. H200, us: fp32 1 x 128 x 112 x 17 5.9, with 4 channels and two rows 6.8; bf16 8 x 64 x 56 x 56 7.1 of
# one row, 8.1 of two; planes 48 x 128 x 7 x 7 5.6 from single elements, by words that are shifted 6.9, 8 x 64 x 55 x 55 7.9
# and 9.1.
FEW, SOME = 2**17, 2**19
LEAST_LOAD = 8  # bytes of a vector; H200, rows of 28: 17.1 us, by single elements 22.5; but of 14 12.9 and 12.4
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


@remembered
def _launch(windows: Windows, strides: Strides, dtype: torch.dtype, offset: int, last: bool) -> Launch:
    width = windows.size[1]
    if _by_words(windows, strides, dtype) and (found := _words(windows, strides, dtype, offset, last)):
        return found
    rows_are_dense = (width == 1 or strides[3] == 1) and (windows.size[0] == 1 or strides[2] == width)
    if not last and rows_are_dense and (tile := _tile(windows, strides, dtype.itemsize)):
        return _staged(windows, strides, dtype, tile)
    return _direct(windows, strides, dtype, offset, last)


def _by_words(windows: Windows, strides: Strides, dtype: torch.dtype) -> bool:
    """Whether the kernels that compare words can run: windows are small, and places and offsets fit."""
    (h, w), (oh, ow), (kh, _), (sh, sw) = windows.size, windows.counts, windows.kernel, windows.stride
    places = (kh + 3 * sh) * w + UNROLLED * (1 + sw)  # of the four rows of windows that a thread has at most
    largest = max(windows.images * windows.channels * oh * ow, abs(strides[2]) * h + abs(strides[3]) * w)
    return (
        windows.small and sh <= kh and sw <= 2 and (dtype.itemsize == 4 or places < 2**16) and largest < 2**31 - BLOCK
    )


def _words(windows: Windows, strides: Strides, dtype: torch.dtype, offset: int, last: bool) -> Launch | None:
    """Of channels side by side, of rows in vectors, in words or by single elements; None where these lie apart."""
    wide, aligned = ACCESS_BYTES // dtype.itemsize, offset // dtype.itemsize
    results = windows.images * windows.channels * windows.counts[0] * windows.counts[1]
    if last:
        most = 4 // dtype.itemsize if results <= FEW else WIDTH
        width = gcd(most, aligned, windows.channels, *(s for i, s in enumerate(strides) if i != 1))
        if width * dtype.itemsize < 4:
            return None
        rows = ROWS if windows.kernel[0] > windows.stride[0] and results > SOME else 1
        return _split(
            windows, strides, dtype, "max_pool2d_channels", windows.channels // width, 1, rows, CHANNELS=1, WIDTH=width
        )
    if windows.size[1] > 1 and strides[3] != 1:
        return None
    load = gcd(wide, RESULTS * windows.stride[1], aligned, windows.size[1], *strides[:3])
    singly = dtype.itemsize == 2 and results <= FEW and windows.kernel[0] > windows.stride[0]
    if load * dtype.itemsize < LEAST_LOAD or singly:
        if dtype.itemsize == 2 and min(strides) >= 0 and results > SOME:
            rows = ROWS if windows.kernel[0] > windows.stride[0] else 1
            more = {"RESULTS": PAIR, "LOAD": 0, "STORE": gcd(PAIR, windows.counts[1])}
            return _split(windows, strides, dtype, "max_pool2d_rows", windows.channels, PAIR, rows, **more)
        return _split(windows, strides, dtype, "max_pool2d_columns", windows.channels, 1, ROWS)
    overlap = windows.kernel[0] // windows.stride[0]  # H200, kernels of 5 x 5, four rows of a thread: 35.2 us, two 38.8
    more = {"RESULTS": RESULTS, "LOAD": load, "STORE": gcd(RESULTS, windows.counts[1])}
    return _split(windows, strides, dtype, "max_pool2d_rows", windows.channels, RESULTS, min(overlap, 4), **more)


def _split(
    windows: Windows, strides: Strides, dtype: torch.dtype, entry: str, parts: int, columns: int, rows: int, **more: int
) -> Launch:
    """A launch of a kernel whose threads make `rows` x `columns` results; `parts`: planes of an image, or of a pixel."""
    oh, ow = windows.counts
    down, across = cdiv(oh, rows), cdiv(ow, columns)
    units = windows.images * parts * across * down
    defines = windows.defines(dtype, **{**more, "ROWS": rows, "BLOCK": THREADS})
    kernel = WORDS.kernel(entry, "x* y* index* geometry:struct split:struct units:i32", **defines)
    sizes = (windows.images, windows.channels, *windows.size)
    extent = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    launch, geometry = kernel.bind(cdiv(units, THREADS), THREADS, units), windows.geometry(strides)
    split = divisor(across) + divisor(down) + divisor(parts) + struct.pack("3i4xq", across, down, parts, extent)
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
        max_pool2d, "two 16-bit windows in one comparison; vectors of a row or of channels, no copy of either format"
    )
}
