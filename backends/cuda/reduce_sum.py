"""Sum over one axis or over everything on CUDA: more and more threads for one sum.

H200, 8192 x 8192 fp32, rows and columns (a copy of as many bytes takes 67 us):

warp   73 1120 us  a warp per row; a thread per column
block  67  159 us  a block per row; the threads of a block share columns
split  67   74 us  long rows and columns are cut into chunks for several blocks; a second launch sums the chunks
"""

import torch

from kernelmux.backends.cuda._reduce import (
    CHUNK_BYTES,
    COLUMNS,
    LONG_COLUMN,
    LONG_ROW,
    row_group,
    sum_columns,
    sum_rows,
)
from kernelmux.backends.cuda._rows import as_matrix
from kernelmux.registry.backend import Implementation


def reduce_sum_warp(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y, (outer, n, inner) = _empty_sum(x, axis, keepdim)
    if inner > 1:
        sum_columns(x, y, (outer, n, inner), columns=inner)
    else:
        sum_rows(x, y, n, group=32)
    return y


def reduce_sum_block(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y, (outer, n, inner) = _empty_sum(x, axis, keepdim)
    if inner > 1:
        sum_columns(x, y, (outer, n, inner))
    else:
        sum_rows(x, y, n, row_group(n * x.element_size()))
    return y


def reduce_sum_split(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y, (outer, n, inner) = _empty_sum(x, axis, keepdim)
    chunk = CHUNK_BYTES // x.element_size()
    if inner > 1:
        sum_columns(x, y, (outer, n, inner), chunk=chunk // COLUMNS if n > LONG_COLUMN else None)
    else:
        sum_rows(x, y, n, row_group(n * x.element_size()), chunk if n > LONG_ROW else None)
    return y


def _empty_sum(x: torch.Tensor, axis: int | None, keepdim: bool) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """The output, not yet written, and x as (outer, n, inner) around the summed axis."""
    if axis is None:
        shape, sizes = [1] * x.dim() if keepdim else [], (1, x.numel(), 1)
    else:
        shape, sizes = [*x.shape[:axis], *([1] if keepdim else []), *x.shape[axis + 1 :]], as_matrix(x, axis)
    return x.new_empty(shape), sizes


_LAYOUT = {"x": "contiguous"}
VARIANTS = {
    "warp": Implementation(
        reduce_sum_warp, "a warp per row, a thread per column", layout=_LAYOUT, arithmetic="fp32_sequential"
    ),
    "block": Implementation(reduce_sum_block, "a block per row", layout=_LAYOUT),
    "split": Implementation(
        reduce_sum_split, "chunks of a row in several blocks, summed by a second launch", layout=_LAYOUT
    ),
}
