"""Sum over one axis or over everything on CUDA: more and more threads for one sum.

warp     a warp per row; a thread per column
block    a block per row; the threads of a block share columns
split    long rows and columns are cut into chunks for several blocks; a second launch sums the chunks
cluster  the chunks of a column are blocks of a cluster, which read one another's shared memory: no second launch
"""

import torch

from kernelmux.backends.cuda._reduce import (
    COLUMN_CHUNK,
    LONG_ROW,
    ROW_CHUNK_BYTES,
    row_group,
    sum_columns,
    sum_columns_in_clusters,
    sum_rows,
)
from kernelmux.backends.cuda._rows import as_matrix
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Capability

_COLUMN_BLOCK = 256
_TILE_INNER = 32
SHORTEST_IN_CLUSTERS, LONGEST_IN_CLUSTERS = 512, 16384  # rows: below, one block is enough; above, eight are too few


def reduce_sum_warp(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y, (outer, n, inner) = _empty_sum(x, axis, keepdim)
    if inner > 1:
        sum_columns(x, y, (outer, n, inner), tile_inner=_COLUMN_BLOCK)
    else:
        sum_rows(x, y, n, group=32)
    return y


def reduce_sum_block(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y, (outer, n, inner) = _empty_sum(x, axis, keepdim)
    if inner > 1:
        sum_columns(x, y, (outer, n, inner), _tile_inner(inner))
    else:
        sum_rows(x, y, n, row_group(n * x.element_size()))
    return y


def reduce_sum_split(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y, (outer, n, inner) = _empty_sum(x, axis, keepdim)
    if inner > 1:
        sum_columns(x, y, (outer, n, inner), _tile_inner(inner), chunk=COLUMN_CHUNK)
    else:
        sum_rows(x, y, n, row_group(n * x.element_size()), chunk=_row_chunk(n, x.element_size()))
    return y


def reduce_sum_cluster(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y, (outer, n, inner) = _empty_sum(x, axis, keepdim)
    if inner == 1 or not SHORTEST_IN_CLUSTERS <= n <= LONGEST_IN_CLUSTERS:
        return reduce_sum_split(x, axis, keepdim)
    sum_columns_in_clusters(x, y, (outer, n, inner), _tile_inner(inner))
    return y


def _empty_sum(x: torch.Tensor, axis: int | None, keepdim: bool) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """The output, not yet written, and x as (outer, n, inner) around the summed axis."""
    if axis is None:
        shape, sizes = [1] * x.dim() if keepdim else [], (1, x.numel(), 1)
    else:
        shape, sizes = [*x.shape[:axis], *([1] if keepdim else []), *x.shape[axis + 1 :]], as_matrix(x, axis)
    return x.new_empty(shape), sizes


def _row_chunk(n: int, size: int) -> int | None:
    return ROW_CHUNK_BYTES // size if n > LONG_ROW else None


def _tile_inner(inner: int) -> int:
    """Threads side by side over the columns; narrow matrices leave more threads to share a column."""
    return min(_TILE_INNER, 1 << (inner - 1).bit_length())


_LAYOUT = {"x": "contiguous"}
VARIANTS = {
    "warp": Implementation(reduce_sum_warp, "a warp per row, a thread per column", layout=_LAYOUT),
    "block": Implementation(reduce_sum_block, "a block per row", layout=_LAYOUT),
    "split": Implementation(
        reduce_sum_split, "chunks of a row in several blocks, summed by a second launch", layout=_LAYOUT
    ),
    "cluster": Implementation(
        reduce_sum_cluster, "chunks of a column in the blocks of a cluster, one launch", layout=_LAYOUT,
        requires=(Capability((9, 0)),),
    ),
}  # fmt: skip
