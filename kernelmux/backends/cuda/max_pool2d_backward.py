"""Gradient of max_pool2d on CUDA: sums in shared memory, or gathered where they lie, in a fixed order; no atomics."""

from math import gcd

import torch

from kernelmux.backends.cuda._families.windows import (
    ACCESS_BYTES,
    BLOCK,
    BLOCKS,
    MOST_WINDOWS,
    RESULTS,
    UNROLLED,
    Launch,
    Strides,
    Windows,
    balanced,
    counter,
)
from kernelmux.backends.cuda._launch.runtime import Source, cdiv
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Pair, four_strides, planes
from kernelmux.registry.util.cards import remembered
from kernelmux.registry.util.memory_format import format_of

SOURCE = Source(__file__)
STAGED_BYTES = 48 << 10  # shared memory of a block, all that it may have without asking; four fit in a multiprocessor
# Of a block at least, if planes are small; its shared memory is what it needs. H200, bf16, 26x128x7x7: 7.0 us, with three
# planes to a block 9.0, all of them with STAGED_BYTES 9.9.
PIXELS = 2 * BLOCK
MOST_COLOURS = 64  # sets of windows without a common element, one barrier each; beyond it gathering takes fewer steps


def max_pool2d_backward(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    windows, form = Windows(*planes(grad_out), size, kernel, stride, padding), format_of(index)
    shape = (*grad_out.shape[:-2], *size)
    out = torch.empty(shape, dtype=grad_out.dtype, device=grad_out.device, memory_format=form)
    if out.numel():
        last, dense = form == torch.channels_last, grad_out.is_contiguous() and index.is_contiguous()
        offset = gcd(ACCESS_BYTES, grad_out.data_ptr(), index.data_ptr())
        _launch(windows, four_strides(grad_out), four_strides(index), grad_out.dtype, offset, last, dense)(
            grad_out, index, out
        )
    return out


@remembered
def _launch(
    windows: Windows, grads: Strides, indices: Strides, dtype: torch.dtype, offset: int, last: bool, dense: bool
) -> Launch:
    pairs = zip(windows.kernel, windows.stride, strict=True)
    down, along = (cdiv(k, s) for k, s in pairs)
    few = down * along == 1 or (down * along <= MOST_COLOURS and windows.kernel[0] * windows.kernel[1] <= UNROLLED)
    if dense and not last and _vectors(windows, dtype.itemsize, offset):
        return _rows(windows, dtype)
    if dense and not last and few and (tile := _tile(windows)):
        return _staged(windows, dtype, tile)
    return _direct(windows, grads, indices, dtype, offset, last)


def _vectors(windows: Windows, size: int, offset: int) -> bool:
    """Whether rows are read and written in vectors, and the sums of a thread's pixels fit in its registers."""
    pieces = gcd(RESULTS, windows.counts[1]), gcd(RESULTS, windows.size[1])
    kw, sw = windows.kernel[1], windows.stride[1]
    return (
        min(pieces) >= 4 and offset % (4 * 4) == 0 and windows.small and sw <= 2 and kw <= 8 and windows.stride[0] <= 2
    )


def _rows(windows: Windows, dtype: torch.dtype) -> Launch:
    (h, w), (_, ow), rows = windows.size, windows.counts, windows.rows_of_a_thread
    units = windows.images * windows.channels * cdiv(h, rows * windows.stride[0]) * cdiv(w, RESULTS * windows.stride[1])
    widest = min(RESULTS, ACCESS_BYTES // dtype.itemsize)
    more = {"ROWS": rows, "PIECE": gcd(widest, ow), "OUT": gcd(widest, w), "INDEX": counter(units)}
    signature = "grad* index* out* geometry:struct units:i64"
    kernel = SOURCE.kernel("max_pool2d_backward_rows", signature, **windows.defines(dtype, **more))
    launch, geometry = kernel.bind(cdiv(units, BLOCK), BLOCK, units), windows.geometry((0, 0, 0, 0))
    return lambda grad, index, out: launch(grad, index, out, geometry)


def _tile(windows: Windows) -> Pair | None:
    """Planes and rows of a block; None where a row does not fit in shared memory."""
    (h, w), (oh, ow), planes = windows.size, windows.counts, windows.images * windows.channels
    elements = STAGED_BYTES // 4 - ACCESS_BYTES // 2  # what lies before the first aligned address stays free
    if h * w <= elements and oh * ow <= MOST_WINDOWS:
        together = max(planes // BLOCKS, PIXELS // (h * w), 1)
        return min(elements // (h * w), MOST_WINDOWS // (oh * ow), together), h
    most = MOST_WINDOWS // ow - windows.kernel[0] // windows.stride[0] - 2  # rows of windows that meet a block
    rows = min(elements // w, most * windows.stride[0])
    return (1, balanced(h, min(rows, h))) if rows >= 1 else None


def _staged(windows: Windows, dtype: torch.dtype, tile: Pair) -> Launch:
    together, rows = tile
    per_plane = cdiv(windows.size[0], rows)
    blocks = cdiv(windows.images * windows.channels, together) * per_plane
    signature = "grad* index* out* geometry:struct tile:struct"
    kernel = SOURCE.kernel("max_pool2d_backward_staged", signature, **windows.defines(dtype))
    geometry, packed = windows.geometry((0, 0, 0, 0)), windows.tile(together, rows, per_plane)
    shared = (
        together * rows * windows.size[1] + ACCESS_BYTES
    ) * 4  # what lies before the first aligned address stays free
    return lambda grad, index, out: kernel(blocks, BLOCK, grad, index, out, geometry, packed, shared=shared)


def _direct(windows: Windows, grads: Strides, indices: Strides, dtype: torch.dtype, offset: int, last: bool) -> Launch:
    """Channels-last results by vectors of channels; the gradients may lie otherwise, and are then read one by one."""
    steps = (windows.channels, *(s for strides in (grads, indices) for i, s in enumerate(strides) if i != 1))
    vectors = last and grads[1] == indices[1] == 1
    width = gcd(offset // max(dtype.itemsize, 1), *steps) if vectors else 1
    down, along = (min(s, 2) if last else 1 for s in windows.stride)
    (h, w), planes = windows.size, windows.images * windows.channels
    units = planes * cdiv(h, down) * cdiv(w, along) // width
    more = {"CHANNELS": int(last), "WIDTH": width, "INDEX": counter(units), "TILE_H": down, "TILE_W": along}
    kernel = SOURCE.kernel(
        "max_pool2d_backward_direct", "grad* index* out* geometry:struct steps:struct units:i64",
        **windows.defines(dtype, **more),
    )  # fmt: skip
    launch, geometry = kernel.bind(cdiv(units, BLOCK), BLOCK, units), windows.geometry(grads)
    packed = windows.geometry(indices)[:32]
    return lambda grad, index, out: launch(grad, index, out, geometry, packed)


VARIANTS = {
    "windows": Implementation(
        max_pool2d_backward,
        "windows that do not overlap add in shared memory at once; channels are gathered in vectors",
    )
}
