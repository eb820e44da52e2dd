"""Reduction family: over one axis or over everything, in one launch or, cut into splits, in two.

How a reduction is cut depends on its length alone, never on how many there are: a result does not depend on its batch.
"""

from dataclasses import dataclass

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES, common_width
from kernelmux.backends.cuda._families.rows import as_matrix, row_width
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype
from kernelmux.registry.backend import Implementation
from kernelmux.registry.util.cards import remembered

# H200, sums of 8192 x 8192 fp32 and bf16: rows 67 and 36.5 us; all in chunks of 32 KiB 69.5 and 39.5, of 256 KiB 3 us
# more; columns 73.5 and 41.8. A copy of as many bytes takes 67 and 36 us, the second launch 2.5.
LONG_ROW, LONG_COLUMN = 65536, 512  # elements; what is longer is cut into chunks for several blocks
CHUNK_BYTES = 32768  # what one block reduces of a long row or of 64 columns
# Of a thread, which asks for all of its part of a row at once. H200, reduce_max of 3000 x 9216, bf16: 19.0 us by 256
# threads and five accesses of each, 23.9 by 512 threads.
MOST_ACCESS_BYTES = 128
ROW_GROUP_BYTES = 64  # per thread, in flight before the first operation
COLUMNS = 64  # per block
_PLACE_COLUMNS = 256  # likewise where states have places: fewer of them to put together at the end
_PARTIAL_COLUMNS = 32  # of partial states: short columns, so few threads side by side and many that share a column
_PARTIAL_ROWS = 256  # of partial states; where there are four times as many, chunks of so many for several blocks
_COLUMN_BLOCK = 256
_THREADS = 1024  # per multiprocessor: 64 registers for each
MOST = 2**30  # elements of a chunk, which a block counts in 32 bits
_SIZES = {"float": 4, "__half": 2, "__nv_bfloat16": 2, "Place": 16}  # bytes
Sizes = tuple[int, int, int]


def row_group(row_bytes: int) -> int:
    """Threads per row: a warp at least, 256 at most."""
    return min(256, max(32, 1 << (max(1, row_bytes // ROW_GROUP_BYTES) - 1).bit_length()))


def unroll(width: int, element: str) -> int:
    """Accesses of a thread in flight: 4 of 16 bytes, more of narrower ones, as registers allow."""
    size = _SIZES[element]
    return max(4, min(32 // size, 4 * ACCESS_BYTES // (width * size)))


def row_unroll(width: int, element: str, accesses: int) -> int:
    """The same, or all `accesses` of a thread where these are few: a block asks for its row at once."""
    most = MOST_ACCESS_BYTES // (width * _SIZES[element])
    return max(unroll(width, element), accesses) if accesses <= most else unroll(width, element)


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
        chunk = CHUNK_BYTES // x.element_size()
        if inner > 1:
            columns = _PLACE_COLUMNS if self.indexed else COLUMNS
            self.columns(x, y, (outer, n, inner), columns, chunk // COLUMNS if n > LONG_COLUMN else None)
        else:
            chunk = chunk if n > LONG_ROW else n
            self.rows(x, y, n, row_group(chunk * x.element_size()), chunk)
        return y

    def empty(self, x: torch.Tensor, axis: int | None, keepdim: bool) -> tuple[torch.Tensor, Sizes]:
        """The output, not yet written, and x as (outer, n, inner) around the reduced axis."""
        if axis is None:
            shape, sizes = [1] * x.dim() if keepdim else [], (1, x.numel(), 1)
        else:
            shape, sizes = [*x.shape[:axis], *([1] if keepdim else []), *x.shape[axis + 1 :]], as_matrix(x, axis)
        return x.new_empty(shape, dtype=self.dtype or x.dtype), sizes

    def rows(self, x: torch.Tensor, y: torch.Tensor, n: int, group: int, chunk: int | None = None) -> None:
        """y[r] = the r-th `n` elements of contiguous `x`, by `group` threads; chunks of a row in several blocks."""
        rows, chunk = y.numel(), min(chunk or n, MOST)
        splits = cdiv(n, chunk) if n else 1
        out = y if splits == 1 else self._states((rows, splits), x.device)
        width = common_width((x,)) if rows == 1 else row_width((x,), n)
        _rows(self, rows, n, chunk, self._element(x), self._output(out, y), width, group)(x, out)
        if splits > 1:
            self.rows(out, y, splits, row_group(4 * splits))

    def columns(
        self, x: torch.Tensor, y: torch.Tensor, sizes: Sizes, columns: int = COLUMNS, chunk: int | None = None,
        follows: bool = False,
    ) -> None:  # fmt: skip
        """y[o, i] = x[o, :, i] of contiguous x, sizes = (outer, n, inner); a block reduces `chunk` rows of `columns`."""
        outer, n, inner = sizes
        chunk = min(chunk or n, MOST)
        splits = cdiv(n, chunk) if n else 1
        out = y if splits == 1 else self._states((splits, outer, inner), x.device)
        width = row_width((x,), inner)
        _columns(self, sizes, chunk, columns, self._element(x), self._output(out, y), width, follows)(x, out)
        if splits > 1:
            self.partial(out, y)

    def partial(self, states: torch.Tensor, y: torch.Tensor, follows: bool = False) -> None:
        """y = the contiguous states, reduced over their first dimension; follows: as in Kernel.bind."""
        n = states.shape[0]
        chunk = _PARTIAL_ROWS if n >= 4 * _PARTIAL_ROWS else None
        self.columns(states, y, (1, n, y.numel()), _PARTIAL_COLUMNS, chunk, follows)

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
    op: Reduction, rows: int, n: int, chunk: int, element: str, output: tuple[str, int], width: int, group: int
) -> BoundLaunch:
    side = max(1, 256 // group) if group <= 32 else 1
    blocks = _THREADS // (group * side)
    kernel = op.source.kernel(
        f"{op.name}_rows", "x* y* rows:i64 n:i64 chunk:i64 splits:u32", ELEMENT=element, OUTPUT=output[0],
        LAST=output[1], WIDTH=width, GROUP=group, ROWS=side, UNROLL=row_unroll(width, element, cdiv(chunk, width * group)),
        MIN_BLOCKS=blocks if side == 1 else blocks - 1,  # rows side by side take some registers more
    )  # fmt: skip
    splits = cdiv(n, chunk) if n else 1
    return kernel.bind(cdiv(rows, side) * splits, (group, side), rows, n, chunk, splits)


@remembered
def _columns(
    op: Reduction,
    sizes: Sizes,
    chunk: int,
    columns: int,
    element: str,
    output: tuple[str, int],
    width: int,
    follows: bool,
) -> BoundLaunch:
    outer, n, inner = sizes
    tile_inner = min(_COLUMN_BLOCK, 1 << (cdiv(min(columns, inner), width) - 1).bit_length())  # threads side by side
    tiles, splits = cdiv(inner, tile_inner * width), cdiv(n, chunk) if n else 1
    kernel = op.source.kernel(
        f"{op.name}_columns", "x* y* n:i64 inner:i64 chunk:i64 outer:u32 tiles:u32", ELEMENT=element,
        OUTPUT=output[0], LAST=output[1], WIDTH=width, GROUP=_COLUMN_BLOCK, TILE_INNER=tile_inner,
        UNROLL=unroll(width, element), MIN_BLOCKS=_THREADS // _COLUMN_BLOCK - op.indexed,  # places take more registers
        FOLLOWS=int(follows),
    )  # fmt: skip
    block = (tile_inner, _COLUMN_BLOCK // tile_inner)
    return kernel.bind(tiles * outer * splits, block, n, inner, chunk, outer, tiles, follows=follows)


def extremum_variant(source: Source, name: str) -> dict[str, Implementation]:
    """A source that ends in EXTREMUM, as one variant."""
    idea = "long rows and columns in chunks, put together by a second launch"
    return {"split": Implementation(Reduction(source, name), idea, layout={"x": "contiguous"})}
