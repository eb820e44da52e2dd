"""Sums over rows and over columns, in one launch or, cut into splits, in two.

How a sum is cut depends on its length alone, never on how many sums there are: a sum does not depend on its batch.
"""

from functools import lru_cache

import torch

from kernelmux.backends.cuda._elementwise import Defines, common_width
from kernelmux.backends.cuda._rows import row_width
from kernelmux.backends.cuda._runtime import Bound, Source, cdiv, ctype

SOURCE = Source(__file__, "reduce_sum.cu")
# H200, 8192 x 8192 fp32 and bf16: rows 67 and 36.5 us; all in chunks of 32 KiB 69.5 and 39.5, of 256 KiB 3 us more;
# columns 73.5 and 41.8. A copy of as many bytes takes 67 and 36 us, the second launch 2.5.
LONG_ROW, LONG_COLUMN = 65536, 512  # elements; what is longer is cut into chunks for several blocks
CHUNK_BYTES = 32768  # what one block sums of a long row or of 64 columns
ROW_GROUP_BYTES = 64  # per thread, in flight before the first addition
COLUMNS = 64  # per block
_PARTIAL_COLUMNS = 32  # sums of partial sums: short columns, so few threads side by side and many that share a column
_COLUMN_BLOCK = 256
_COLUMN_BLOCKS = 4  # per multiprocessor: 64 registers per thread


def row_group(row_bytes: int) -> int:
    """Threads per row: a warp at least, 512 at most."""
    return min(512, max(32, 1 << (max(1, row_bytes // ROW_GROUP_BYTES) - 1).bit_length()))


def sum_rows(x: torch.Tensor, y: torch.Tensor, n: int, group: int, chunk: int | None = None, **defines: int) -> None:
    """y[r] = sum of the r-th `n` elements of contiguous `x`, by `group` threads; chunks of a row in several blocks."""
    rows = y.numel()
    splits = cdiv(n, chunk) if chunk and n else 1
    out = y if splits == 1 else torch.empty(rows * splits, dtype=torch.float32, device=y.device)
    width = common_width((x,)) if rows == 1 else row_width((x,), n)
    _rows(rows, n, chunk or n, x.dtype, out.dtype, width, group, tuple(defines.items()))(x, out)
    if splits > 1:
        sum_rows(out, y, splits, row_group(4 * splits))


@lru_cache(maxsize=4096)
def _rows(
    rows: int, n: int, chunk: int, dtype: torch.dtype, out: torch.dtype, width: int, group: int, defines: Defines
) -> Bound:
    side = max(1, 256 // group) if group <= 32 else 1
    kernel = SOURCE.kernel(
        "reduce_sum_rows", "x* y* rows:i64 n:i64 chunk:i64 splits:u32", ELEMENT=ctype(dtype), OUTPUT=ctype(out),
        WIDTH=width, GROUP=group, ROWS=side, **dict(defines),
    )  # fmt: skip
    splits = cdiv(n, chunk) if n else 1
    return kernel.bind(cdiv(rows, side) * splits, (group, side), rows, n, chunk, splits)


def sum_columns(
    x: torch.Tensor, y: torch.Tensor, sizes: tuple[int, int, int], columns: int = COLUMNS, chunk: int | None = None
) -> None:
    """y[o, i] = sum over k of x[o, k, i], sizes = (outer, n, inner), contiguous; a block sums `columns`, or rows
    of `chunk` of them."""
    outer, n, inner = sizes
    splits = cdiv(n, chunk) if chunk and n else 1
    out = y if splits == 1 else torch.empty((splits, outer, inner), dtype=torch.float32, device=y.device)
    _columns(sizes, chunk or n, columns, x.dtype, out.dtype, row_width((x,), inner))(x, out)
    if splits > 1:
        sum_partial(out, y)


def sum_partial(partial: torch.Tensor, y: torch.Tensor) -> None:
    """y = sum of the contiguous `partial` over its first dimension."""
    splits = partial.shape[0]
    sum_columns(partial, y, (1, splits, y.numel()), _PARTIAL_COLUMNS)


@lru_cache(maxsize=4096)
def _columns(
    sizes: tuple[int, int, int], chunk: int, columns: int, dtype: torch.dtype, out: torch.dtype, width: int
) -> Bound:
    outer, n, inner = sizes
    tile_inner = min(_COLUMN_BLOCK, 1 << (cdiv(min(columns, inner), width) - 1).bit_length())  # threads side by side
    tiles, splits = cdiv(inner, tile_inner * width), cdiv(n, chunk) if n else 1
    kernel = SOURCE.kernel(
        "reduce_sum_columns", "x* y* n:i64 inner:i64 chunk:i64 outer:u32 tiles:u32", ELEMENT=ctype(dtype),
        OUTPUT=ctype(out), WIDTH=width, GROUP=_COLUMN_BLOCK, TILE_INNER=tile_inner, MIN_BLOCKS=_COLUMN_BLOCKS,
    )  # fmt: skip
    block = (tile_inner, _COLUMN_BLOCK // tile_inner)
    return kernel.bind(tiles * outer * splits, block, n, inner, chunk, outer, tiles)
