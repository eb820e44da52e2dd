"""Sums over rows and over columns, in one launch or, cut into splits, in two.

How a sum is cut depends on its length alone, never on how many sums there are: a sum does not depend on its batch.
"""

from functools import lru_cache

import torch

from kernelmux.backends.cuda._elementwise import Defines, common_width
from kernelmux.backends.cuda._rows import row_width
from kernelmux.backends.cuda._runtime import Bound, Source, cdiv, ctype

SOURCE = Source(__file__, "reduce_sum.cu")
LONG_ROW = 65536  # elements: a longer row is cut into chunks for several blocks
ROW_CHUNK_BYTES = 32768  # H200, 2^26 elements: chunks of 32 KiB 71.5 us (fp32) and 39.2 (bf16), of 256 KiB 3 us more
ROW_GROUP_BYTES = 64  # per thread, in flight before the first addition: 68.8 us for 8192 x 8192 fp32, of 128 71
COLUMN_CHUNK = 512  # rows that one block of columns walks down; the partial sums are 2/512 of the traffic in fp32
_TILE_INNER = 32
_COLUMN_BLOCK = 256
_COLUMN_BLOCKS = 4  # per multiprocessor: 64 registers per thread
_PARTIAL_TILE = 8  # sums of partial sums: short columns, so few threads side by side and many that share a column


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
    x: torch.Tensor, y: torch.Tensor, sizes: tuple[int, int, int], tile_inner: int = _TILE_INNER,
    chunk: int | None = None, block: int = _COLUMN_BLOCK, blocks: int = _COLUMN_BLOCKS, **defines: int,
) -> None:  # fmt: skip
    """y[o, i] = sum over k of x[o, k, i], sizes = (outer, n, inner), contiguous; `chunk` as in sum_rows."""
    outer, n, inner = sizes
    splits = cdiv(n, chunk) if chunk and n else 1
    out = y if splits == 1 else torch.empty((splits, outer, inner), dtype=torch.float32, device=y.device)
    options = (("GROUP", block), ("TILE_INNER", tile_inner), ("MIN_BLOCKS", blocks), *defines.items())
    _columns(sizes, chunk or n, x.dtype, out.dtype, row_width((x,), inner), options)(x, out)
    if splits > 1:
        sum_columns(out, y, (1, splits, outer * inner), _PARTIAL_TILE)


@lru_cache(maxsize=4096)
def _columns(
    sizes: tuple[int, int, int], chunk: int, dtype: torch.dtype, out: torch.dtype, width: int, options: Defines
) -> Bound:
    (outer, n, inner), defines = sizes, dict(options)
    block, tile_inner = int(defines["GROUP"]), int(defines["TILE_INNER"])
    tiles = cdiv(inner, tile_inner * width)
    kernel = SOURCE.kernel(
        "reduce_sum_columns", "x* y* n:i64 inner:i64 chunk:i64 outer:u32 tiles:u32", ELEMENT=ctype(dtype),
        OUTPUT=ctype(out), WIDTH=width, **defines,
    )  # fmt: skip
    grid = tiles * outer * (cdiv(n, chunk) if n else 1)
    return kernel.bind(grid, (tile_inner, block // tile_inner), n, inner, chunk, outer, tiles)


def sum_columns_in_clusters(
    x: torch.Tensor, y: torch.Tensor, sizes: tuple[int, int, int], tile_inner: int = _TILE_INNER,
    block: int = _COLUMN_BLOCK, blocks: int = 8, **defines: int,
) -> None:  # fmt: skip
    """sum_columns in one launch: the `blocks` chunks of a column are the blocks of a cluster (sm_90)."""
    outer, n, inner = sizes
    width = row_width((x,), inner)
    tiles = cdiv(inner, tile_inner * width)
    kernel = SOURCE.kernel(
        "reduce_sum_cluster", "x* y* n:i64 inner:i64 chunk:i64 tiles:u32", ELEMENT=ctype(x.dtype),
        OUTPUT=ctype(y.dtype), WIDTH=width, GROUP=block, TILE_INNER=tile_inner, CLUSTER=blocks, **defines,
    )  # fmt: skip
    kernel(tiles * outer * blocks, (tile_inner, block // tile_inner), x, y, n, inner, cdiv(n, blocks), tiles)
