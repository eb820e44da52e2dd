"""Reduction family: over one axis or over everything, in one launch or, cut into splits, in two.

How a row is cut depends on its length alone, never on how many rows there are: a result does not depend on its batch.
Columns are cut so that there are blocks enough, whatever their number.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES, common_width
from kernelmux.backends.cuda._families.rows import as_matrix, row_width
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, card, cdiv, ctype, next_power
from kernelmux.registry.backend import Implementation
from kernelmux.registry.util.cards import remembered

# H200, sums of 8192 x 8192 fp32 and bf16: rows 67 and 36.5 us; all in chunks of 32 KiB 69.5 and 39.5, of 256 KiB 3 us
# more; columns 73.5 and 41.8. A copy of as many bytes takes 67 and 36 us, the second launch 2.5.
LONG_ROW = 65536  # elements; what is longer is cut into chunks for several blocks
CHUNK_BYTES = 32768  # what one block reduces of a long row
# Of a thread, which asks for all of its part of a row at once. H200, reduce_max of 3000 x 9216, bf16: 19.0 us by 256
# threads and five accesses of each, 23.9 by 512 threads.
MOST_ACCESS_BYTES = 128
ROW_GROUP_BYTES = 64  # per thread, in flight before the first operation
LONG_ROW_BYTES = 32768  # of what 512 threads reduce
PEELED_BYTES = 512  # of a row that starts between two accesses, whose vectors are worth beginning at the next
FEW_ROWS = 64  # down which one block goes; up to eight times as many with more threads, where tiles are many up to 4096
MANY_TILES = 200
FOLD_BYTES, FOLD_ROWS = 2**23, 128  # of what is worth a second launch so that all rows begin at whole accesses
FULL = 0.85  # of their rounds that blocks fill, where FOLD_BYTES or more are reduced down columns
MOST = 2**30  # elements of a chunk, which a block counts in 32 bits
_THREADS = 1024  # per multiprocessor: 64 registers for each
_SIZES = {"float": 4, "__half": 2, "__nv_bfloat16": 2, "Place": 16}  # bytes
Sizes = tuple[int, int, int]


class ColumnTile(NamedTuple):
    """Of columns: how many columns and threads a block has."""

    columns: int
    threads: int = 256


COLUMNS = ColumnTile(64)
# Of states: short columns, so few of them side by side, fewest where there are at most FEW, and many threads down each.
PARTIAL, FEW_PARTIAL, FEW = ColumnTile(32), ColumnTile(8), 1024
_PARTIAL_ROWS = 256  # of states; where there are four times as many, chunks of so many for several blocks


def row_group(row_bytes: int) -> int:
    """Threads per row, each with about four accesses: 1 to 256, or 512.

    H200, bf16: reduce_max of 20000 x 4304 by 128 threads 46.2 us, by 256 55.7; of 16384 x 5120 44.5 and 48.2; but
    reduce_sum of 20000 x 6000 by 128 62.6, by 256 60.2.
    """
    if row_bytes >= LONG_ROW_BYTES:
        return 512
    threads = max(1, row_bytes / ROW_GROUP_BYTES)
    return min(256, 1 << round(math.log2(threads)))


def unroll(width: int, element: str) -> int:
    """Accesses of a thread in flight: 4 of 16 bytes, more of narrower ones, as registers allow."""
    size = _SIZES[element]
    return max(4, min(32 // size, 4 * ACCESS_BYTES // (width * size)))


def row_unroll(width: int, element: str, accesses: int) -> int:
    """The same, or the `accesses` of a thread where these are few: a block asks for its row at once, and for no more."""
    most = MOST_ACCESS_BYTES // (width * _SIZES[element])
    return max(1, accesses) if accesses <= most else unroll(width, element)


@remembered
def column_cut(
    outer: int, n: int, inner: int, size: int, indexed: bool, processors: int
) -> tuple[ColumnTile, int | None]:
    """The tile for columns of `n` elements of `size` bytes, and the rows of a chunk, None: all.

    A tile has lines of 128 bytes, or of 256 where places count, blocks are many, or there is much to read.
    """
    if n <= FEW_ROWS:
        return few_rows_tile(outer, n, inner, size), None
    total = outer * n * inner * size
    if not indexed and n > 8 * FEW_ROWS and total >= FOLD_BYTES:
        line = 256 if total >= 4 * FOLD_BYTES else 128
        splits = full_rounds(outer * cdiv(inner * size, line), n, processors)
        return ColumnTile(line // size), cdiv(n, splits) if splits > 1 else None
    tiles = outer * cdiv(inner * size, 256 if indexed else 128)
    if indexed:
        tile, whole = ColumnTile(256 // size), n <= 2 * FEW_ROWS
    else:
        whole = n <= 8 * FEW_ROWS or (n <= 4096 and tiles >= MANY_TILES)
        many = whole and n <= 8 * FEW_ROWS and tiles >= 5 * MANY_TILES
        tile = ColumnTile(256 // size) if many else ColumnTile(128 // size, 512 if whole else 256)
    return tile, None if whole else min(max(64, next_power(cdiv(n * tiles, 512))), max(512, next_power(cdiv(n, 512))))


def full_rounds(tiles: int, n: int, processors: int) -> int:
    """The fewest chunks of `n` rows by which blocks of 256 threads fill their rounds to FULL, or else best.

    H200, bf16, sums of 8192 x 5001, whose tiles are 1.2 rounds in two chunks: 36.5 us in three, 42.0 in one of twice as
    large blocks; of 20000 x 1001 22.1 (28.0), of 300000 x 128 27.9 (31.3).
    """
    at_once = _THREADS // 256 * processors

    def share(splits: int) -> float:
        blocks = tiles * splits
        return blocks / (cdiv(blocks, at_once) * at_once)

    counts = range(1, max(1, min(cdiv(4 * at_once, tiles), n // 64)) + 1)
    return next((s for s in counts if share(s) >= FULL), None) or max(counts, key=share)


def few_rows_tile(outer: int, n: int, inner: int, size: int) -> ColumnTile:
    """Of at most FEW_ROWS: the longest lines of which a thread reads four rows, and of which there are enough.

    H200, sums of 2 x 4194304 and 16 x 1048576 in fp32: 259.6 and 78.9 us by lines of 128 bytes, of which most threads
    have no row.
    """
    line = 256
    while 2 * line * n <= 4 * 256 * ACCESS_BYTES and outer * cdiv(inner * size, 2 * line) >= MANY_TILES:
        line *= 2
    return ColumnTile(line // size)


@dataclass(frozen=True, eq=False)
class Reduction:
    """An op whose source has the entries `<name>_rows` and `<name>_columns` (the macro REDUCTION).

    dtype: of the result, if not that of the input. indexed: the states of splits are values with their places.
    """

    source: Source
    name: str
    dtype: torch.dtype | None = None
    indexed: bool = False

    def __call__(self, x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
        """Of contiguous x; long rows and columns are cut into chunks for several blocks."""
        y, (outer, n, inner) = self.empty(x, axis, keepdim)
        if inner > 1:
            fold = self._fold(x, (outer, n, inner))
            tile, chunk = column_cut(
                outer, cdiv(n, fold), inner * fold, x.element_size(), self.indexed, card(x).processors
            )
            self.columns(x, y, (outer, n, inner), tile, chunk, fold=fold)
        else:
            chunk = CHUNK_BYTES // x.element_size() if n > LONG_ROW else n
            self.rows(x, y, n, row_group(chunk * x.element_size()), chunk)
        return y

    def empty(self, x: torch.Tensor, axis: int | None, keepdim: bool) -> tuple[torch.Tensor, Sizes]:
        """The output, not yet written, and x as (outer, n, inner) around the reduced axis."""
        if axis is None:
            shape, sizes = [1] * x.dim() if keepdim else [], (1, x.numel(), 1)
        else:
            shape, sizes = [*x.shape[:axis], *([1] if keepdim else []), *x.shape[axis + 1 :]], as_matrix(x, axis)
        return x.new_empty(shape, dtype=self.dtype or x.dtype), sizes

    def rows(
        self, x: torch.Tensor, y: torch.Tensor, n: int, group: int, chunk: int | None = None, follows: bool = False
    ) -> None:
        """y[r] = the r-th `n` elements of contiguous `x`, by `group` threads; chunks of a row in several blocks."""
        rows, chunk = y.numel(), min(chunk or n, MOST)
        splits = cdiv(n, chunk) if n else 1
        out = y if splits == 1 else self._states((rows, splits), x.device)
        width, widest = common_width((x,)) if rows == 1 else row_width((x,), n), ACCESS_BYTES // x.element_size()
        peeled = width < widest and n * x.element_size() >= PEELED_BYTES
        width = widest if peeled else width
        _rows(self, rows, n, chunk, self._element(x), self._output(out, y), width, group, follows, peeled)(x, out)
        if splits > 1:
            self.rows(out, y, splits, row_group(4 * splits), follows=True)

    def columns(
        self, x: torch.Tensor, y: torch.Tensor, sizes: Sizes, tile: ColumnTile = COLUMNS, chunk: int | None = None,
        follows: bool = False, fold: int = 1,
    ) -> None:  # fmt: skip
        """y[o, i] = x[o, :, i] of contiguous x, sizes = (outer, n, inner); a block reduces `chunk` rows of a tile.

        fold: rows that are one, of as many times the columns.
        """
        outer, n, inner = sizes
        rows = cdiv(n, fold)
        chunk = min(chunk or rows, MOST)
        splits = cdiv(rows, chunk) if n else 1
        out = y if splits * fold == 1 else self._states((splits * fold, outer, inner), x.device)
        width = row_width((x,), inner * fold)
        kind = self._element(x), self._output(out, y), width, follows
        _columns(self, (outer, rows, inner * fold), chunk, tile, fold, n % fold * inner or inner * fold, *kind)(x, out)
        if out is not y:
            self.partial(out, y, follows=True)

    def partial(self, states: torch.Tensor, y: torch.Tensor, follows: bool = False) -> None:
        """y = the contiguous states, reduced over their first dimension; follows: as in Kernel.bind."""
        n = states.shape[0]
        chunk = _PARTIAL_ROWS if n >= 4 * _PARTIAL_ROWS else None
        if n <= FEW_ROWS:
            tile = few_rows_tile(1, n, y.numel(), states.element_size())
        else:
            tile = FEW_PARTIAL if y.numel() <= FEW else PARTIAL
        self.columns(states, y, (1, n, y.numel()), tile, chunk, follows)

    def _fold(self, x: torch.Tensor, sizes: Sizes) -> int:
        """How many rows are taken as one, so that they begin at whole accesses."""
        outer, n, inner = sizes
        widest = ACCESS_BYTES // x.element_size()
        if self.indexed or outer > 1 or x.numel() * x.element_size() < FOLD_BYTES or common_width((x,)) < widest:
            return 1
        fold = widest // row_width((x,), inner)
        return fold if n >= fold * FOLD_ROWS else 1

    def _states(self, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        """States of splits, not yet written: an element for each, in fp32 or, with its place, in two numbers of 64 bits."""
        return torch.empty(shape, dtype=torch.complex128 if self.indexed else torch.float32, device=device)

    def _element(self, x: torch.Tensor) -> str:
        return "Place" if x.dtype == torch.complex128 else ctype(x.dtype)

    def _output(self, out: torch.Tensor, y: torch.Tensor) -> tuple[str, int]:
        """The type of what a launch writes, and whether that is the result."""
        return self._element(out), int(out is y)


@remembered
def _rows(
    op: Reduction,
    rows: int,
    n: int,
    chunk: int,
    element: str,
    output: tuple[str, int],
    width: int,
    group: int,
    follows: bool,
    peeled: bool,
) -> BoundLaunch:
    side = max(1, 256 // group) if group <= 32 else 1
    blocks = _THREADS // (group * side)
    kernel = op.source.kernel(
        f"{op.name}_rows", "x* y* rows:i64 n:i64 chunk:i64 splits:u32", ELEMENT=element, OUTPUT=output[0],
        LAST=output[1], WIDTH=width, GROUP=group, ROWS=side, UNROLL=row_unroll(width, element, cdiv(chunk, width * group)),
        MIN_BLOCKS=blocks if side == 1 else blocks - 1,  # rows side by side take some registers more
        FOLLOWS=int(follows), PEELED=int(peeled),
    )  # fmt: skip
    splits = cdiv(n, chunk) if n else 1
    return kernel.bind(cdiv(rows, side) * splits, (group, side), rows, n, chunk, splits, follows=follows)


@remembered
def _columns(
    op: Reduction, sizes: Sizes, chunk: int, tile: ColumnTile, fold: int, rest: int, element: str, output: tuple[str, int],
    width: int, follows: bool,
) -> BoundLaunch:  # fmt: skip
    (outer, n, inner), (columns, threads) = sizes, tile
    tile_inner = min(threads, next_power(cdiv(min(columns, inner), width)))  # threads side by side
    tiles, splits = cdiv(inner, tile_inner * width), cdiv(n, chunk) if n else 1
    kernel = op.source.kernel(
        f"{op.name}_columns", "x* y* n:i64 inner:i64 chunk:i64 rest:i64 outer:u32 tiles:u32", ELEMENT=element,
        OUTPUT=output[0], LAST=output[1], WIDTH=width, GROUP=threads, TILE_INNER=tile_inner, FOLDED=int(fold > 1),
        UNROLL=unroll(width, element), MIN_BLOCKS=_THREADS // threads - op.indexed,  # places take more registers
        FOLLOWS=int(follows),
    )  # fmt: skip
    block = (tile_inner, threads // tile_inner)
    return kernel.bind(tiles * outer * splits, block, n, inner, chunk, rest, outer, tiles, follows=follows)


def extremum_variant(source: Source, name: str) -> dict[str, Implementation]:
    """A source that ends in EXTREMUM, as one variant."""
    idea = "long rows and columns in chunks, put together by a second launch"
    return {"split": Implementation(Reduction(source, name), idea, layout={"x": "contiguous"})}
