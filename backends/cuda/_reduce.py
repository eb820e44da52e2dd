"""Sums over rows and over columns, in one launch or, cut into splits, in two.

How a sum is cut depends on its length alone, never on how many sums there are: a sum does not depend on its batch.
"""

import torch

from kernelmux.backends.cuda._elementwise import common_width
from kernelmux.backends.cuda._rows import row_width
from kernelmux.backends.cuda._runtime import Source, cdiv, ctype

SOURCE = Source(__file__, "reduce_sum.cu")
ROW_CHUNK = 65536  # elements of a long row that one block sums
COLUMN_CHUNK = 512  # rows that one block of columns walks down; the partial sums are 2/512 of the traffic in fp32
_TILE_INNER = 32
_COLUMN_BLOCK = 256


def sum_rows(
    x: torch.Tensor, y: torch.Tensor, n: int, group: int, chunk: int | None = None, unroll: int = 8, **defines: int
) -> None:
    """y[r] = sum of the r-th `n` elements of contiguous `x`, by `group` threads; rows above `chunk` are split."""
    rows = y.numel()
    chunk = n if chunk is None else min(n, chunk)
    splits = cdiv(n, chunk) if n else 1
    out = y if splits == 1 else torch.empty(rows * splits, dtype=torch.float32, device=y.device)
    width = common_width((x,)) if rows == 1 else row_width((x,), n)
    side = max(1, 256 // group) if group <= 32 else 1
    kernel = SOURCE.kernel(
        "reduce_sum_rows", "x* y* rows:i64 n:i64 chunk:i64", ELEMENT=ctype(x.dtype), OUTPUT=ctype(out.dtype),
        WIDTH=width, GROUP=group, ROWS=side, UNROLL=unroll, **defines,
    )  # fmt: skip
    kernel((cdiv(rows, side), splits), (group, side), x, out, rows, n, chunk)
    if splits > 1:
        sum_rows(out, y, splits, group=32 if splits <= 128 else 256)


def sum_columns(
    x: torch.Tensor, y: torch.Tensor, sizes: tuple[int, int, int], tile_inner: int = _TILE_INNER,
    chunk: int | None = None, block: int = _COLUMN_BLOCK, **defines: int,
) -> None:  # fmt: skip
    """y[o, i] = sum over k of x[o, k, i], sizes = (outer, n, inner), contiguous; `chunk` as in sum_rows."""
    outer, n, inner = sizes
    chunk = n if chunk is None else min(n, chunk)
    splits = cdiv(n, chunk) if n else 1
    out = y if splits == 1 else torch.empty((splits, outer, inner), dtype=torch.float32, device=y.device)
    width = row_width((x, out), inner)
    tiles = cdiv(inner, tile_inner * width)
    kernel = SOURCE.kernel(
        "reduce_sum_columns", "x* y* outer:i64 n:i64 inner:i64 tiles:i64 chunk:i64", ELEMENT=ctype(x.dtype),
        OUTPUT=ctype(out.dtype), WIDTH=width, GROUP=block, TILE_INNER=tile_inner, **defines,
    )  # fmt: skip
    kernel((tiles * outer, splits), (tile_inner, block // tile_inner), x, out, outer, n, inner, tiles, chunk)
    if splits > 1:
        sum_columns(out, y, (1, splits, outer * inner))


def sum_columns_in_clusters(
    x: torch.Tensor, y: torch.Tensor, sizes: tuple[int, int, int], tile_inner: int = _TILE_INNER,
    block: int = _COLUMN_BLOCK, blocks: int = 8, **defines: int,
) -> None:  # fmt: skip
    """sum_columns in one launch: the `blocks` chunks of a column are the blocks of a cluster (sm_90)."""
    outer, n, inner = sizes
    width = row_width((x,), inner)
    tiles = cdiv(inner, tile_inner * width)
    kernel = SOURCE.kernel(
        "reduce_sum_cluster", "x* y* n:i64 inner:i64 tiles:i64 chunk:i64", ELEMENT=ctype(x.dtype),
        OUTPUT=ctype(y.dtype), WIDTH=width, GROUP=block, TILE_INNER=tile_inner, CLUSTER=blocks, **defines,
    )  # fmt: skip
    kernel(tiles * outer * blocks, (tile_inner, block // tile_inner), x, y, n, inner, tiles, cdiv(n, blocks))
