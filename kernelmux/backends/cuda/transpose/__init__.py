"""Transpose on CUDA: the same bytes, moved better and better.

H200, 8192 x 8192 fp32 (a copy of as many bytes takes 129 us):

naive       957 us  reads coalesced, writes M elements apart
coalesced   284 us  writes coalesced, reads strided: loads are cached, stores are not
tiled       312 us  both coalesced through a tile in shared memory, but its columns sit in one bank: 32 conflicts a read
padded      168 us  one unused column: a column of the tile falls in different banks
vectorized  138 us  16 bytes per access on both sides, small elements packed into words, the tile permuted, not padded

`vectorized` has kernels for what is narrow, or no multiple of 16 bytes. us with a cold L2, and of `unaligned` there:

few_rows      12.2   65.9  7 x 1000003 bf16
few_columns    4.8   10.4  100003 x 5 bf16
shifted       81.8  113.4  8191 x 8191 bf16
              47.5   99.1  8191 x 8193 int8
             236.1  265.2  933 x 97792 int32; 4-byte items take it where rows of x are aligned, of y not:
              28.1   23.8  4097 x 2047 fp32
"""

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES, common_width
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, bits_type, cdiv, next_power
from kernelmux.registry.backend import Implementation
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__)
VECTORIZED = Source(__file__, "transpose_vectorized.cu")
UNALIGNED = Source(__file__, "transpose_unaligned.cu")
SHIFTED = Source(__file__, "transpose_shifted.cu")
NARROW = Source(__file__, "transpose_narrow.cu")
_SIGNATURE = "x* y* M:i32 N:i32 ldx:i64"
_TILE, _TILE_ROWS = 32, 8  # 256 threads: each moves 4 elements
_LEAST, _NARROW = 16, 64  # sides of aligned tiles at least; rows, or columns, of a narrow matrix at most
_BLOCKS = 2  # per multiprocessor, for which tiles become smaller
_SHORT = 32  # sides of tiles of `unaligned`; length of those of narrow matrices at least
# Tile along M and N and threads by item size, those first that move most. H200, 8192 x 8192, the first: 44, 72, 138 and
# 284 us, which are 71, 88, 92 and 88 % of what a large copy reaches.
_TILES = {
    1: ((128, 128, 256), (64, 64, 64), (32, 64, 32)),
    2: ((128, 128, 256), (64, 64, 256), (32, 64, 128), (32, 32, 64)),
    4: ((64, 64, 256), (32, 64, 256), (32, 32, 256), (16, 32, 128)),
    8: ((32, 32, 128),),
}
_SHIFTED_TILES = {
    1: ((128, 128, 320), (128, 64, 160), (64, 32, 64)),
    2: ((64, 64, 160), (32, 32, 96)),
    4: ((128, 32, 288),),
}
_NARROW_AREAS = {"few_rows": 2048, "few_columns": 1024}  # elements of a tile at most, where it is longer than _SHORT


class Matrices(NamedTuple):
    """Matrices [M, N] of items of `size` bytes, rows ldx apart; `width` elements are what x is aligned to."""

    matrices: int
    M: int
    N: int
    ldx: int
    apart: int
    size: int
    width: int
    processors: int

    @property
    def whole(self) -> int:
        """Elements of the widest access."""
        return ACCESS_BYTES // self.size

    @property
    def x_piece(self) -> int:
        """Elements, at most `whole`, of which the beginnings of all matrices are multiples."""
        return gcd(self.width, self.apart if self.matrices > 1 else 0)

    @property
    def y_piece(self) -> int:
        return gcd(self.whole, self.M * self.N if self.matrices > 1 else 0)

    @property
    def x_row(self) -> int:
        """The same of beginnings and lengths of all rows."""
        return gcd(self.x_piece, self.N, self.ldx if self.M > 1 else 0)

    @property
    def y_row(self) -> int:
        return gcd(self.y_piece, self.M)

    def enough(self, tile_m: int, tile_n: int) -> bool:
        """Whether every multiprocessor has _BLOCKS."""
        return self.matrices * cdiv(self.M, tile_m) * cdiv(self.N, tile_n) >= _BLOCKS * self.processors


class TransposeTiles(NamedTuple):
    """A kernel, rows and columns of its tiles, threads; in a narrow matrix elements of an access to rows and to pieces."""

    kernel: str
    m: int
    n: int
    block: int
    width: int = 1
    piece: int = 1


def _through_tiles(entry: str, x: torch.Tensor) -> torch.Tensor:
    M, N = x.shape
    y = x.new_empty(N, M)
    kernel = SOURCE.kernel(entry, _SIGNATURE, ELEMENT=bits_type(x.dtype), TILE=_TILE, TILE_ROWS=_TILE_ROWS)
    kernel(cdiv(M, _TILE) * cdiv(N, _TILE), (_TILE, _TILE_ROWS), x, y, M, N, x.stride(0))
    return y


def transpose_naive(x: torch.Tensor) -> torch.Tensor:
    return _through_tiles("transpose_naive", x)


def transpose_coalesced(x: torch.Tensor) -> torch.Tensor:
    return _through_tiles("transpose_coalesced", x)


def transpose_tiled(x: torch.Tensor) -> torch.Tensor:
    return _through_tiles("transpose_tiled", x)


def transpose_padded(x: torch.Tensor) -> torch.Tensor:
    return _through_tiles("transpose_padded", x)


def transpose_vectorized(x: torch.Tensor) -> torch.Tensor:
    """16-byte accesses; where sizes or addresses are not multiples of 16 bytes, each row by its own alignment."""
    return transpose_batch(x[None])[0]


def transpose_batch(x: torch.Tensor) -> torch.Tensor:
    """Each matrix of x [B M N], whose rows are contiguous, transposed; at most 65535 of them."""
    matrices, M, N = x.shape
    y = x.new_empty(matrices, N, M)
    if not y.numel():
        return y
    width = common_width((x,))
    _by_tiles(x.get_device(), matrices, M, N, x.stride(1), x.stride(0), x.dtype, width)(x, y)
    return y


@remembered
def _by_tiles(
    device: int, matrices: int, M: int, N: int, ldx: int, apart: int, dtype: torch.dtype, width: int
) -> BoundLaunch:
    c = Matrices(matrices, M, N, ldx, apart, dtype.itemsize, width, cards.of(device).processors)
    return _launch(_tiles(c), c, dtype)


def _launch(t: TransposeTiles, c: Matrices, dtype: torch.dtype) -> BoundLaunch:
    source, macros = UNALIGNED, {"TILE_M": t.m, "TILE_N": t.n}
    if t.kernel == "vectorized":
        source = VECTORIZED
    elif t.kernel == "shifted":
        source = SHIFTED
        macros |= {"ODD_X": int(c.x_row < c.whole), "ODD_Y": int(c.y_row < c.whole)}
    elif t.kernel != "unaligned":
        few, tile = (t.m, t.n) if t.kernel == "few_rows" else (t.n, t.m)
        source, macros = NARROW, {"FEW": few, "TILE": tile, "WIDTH": t.width, "PIECE": t.piece}
    signature = f"{_SIGNATURE} apart:i64"
    kernel = source.kernel(f"transpose_{t.kernel}", signature, ELEMENT=bits_type(dtype), BLOCK=t.block, **macros)
    return kernel.bind((cdiv(c.M, t.m) * cdiv(c.N, t.n), c.matrices), t.block, c.M, c.N, c.ldx, c.apart)


def _tiles(c: Matrices) -> TransposeTiles:
    """The kernel and the tiles for a kind of call."""
    odd = (c.x_row < c.whole) + (c.y_row < c.whole)  # sides that are not aligned
    most = _NARROW if odd else _LEAST - 1
    if c.M <= min(c.N, most):
        return _narrow(c, "few_rows")
    if c.N <= most and c.ldx == c.N:
        return _narrow(c, "few_columns")
    if not odd:
        return TransposeTiles("vectorized", *_cut(c, _TILES[c.size]))
    if c.size < 8 and min(c.M, c.N) > _NARROW and c.ldx >= c.whole:
        m, n, block = _cut(c, _SHIFTED_TILES[c.size])
        if c.size < 4 or (c.x_row == c.whole and c.enough(m, n)):
            return TransposeTiles("shifted", m, n, block)
    return TransposeTiles("unaligned", _SHORT, _SHORT, min(128, 64 * c.size))


def _cut(c: Matrices, tiles: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    """The first tile of which there are enough, or the last; no higher and wider than the matrix."""
    m = n = block = 0
    for m, n, block in tiles:  # noqa: B007
        area = m * n
        while m >= 2 * max(c.M, _LEAST):
            m, n = m // 2, n * 2
        while n >= 2 * max(c.N, _LEAST):
            n //= 2
            m = area // n
        if c.enough(m, n):
            break
    return m, n, block


def _narrow(c: Matrices, kernel: str) -> TransposeTiles:
    """Every multiprocessor has a tile, if there can be so many; a thread has some four accesses to rows.

    These are up to 16 bytes wide for large items (30 x 100000 fp32: 9.9 us, 10.5 one by one); bf16 gains nothing.
    """
    by_rows = kernel == "few_rows"
    few, many, row, piece = (c.M, c.N, c.x_row, c.y_piece) if by_rows else (c.N, c.M, c.y_row, c.x_piece)
    few = next_power(few)
    tile = max(_SHORT, min(256, _NARROW_AREAS[kernel] // few))
    while tile > _SHORT and c.matrices * cdiv(many, tile) < c.processors:
        tile //= 2
    width = row if c.size >= 4 else 1
    lanes = tile // width
    block = max(lanes, 128, min(256, few * lanes // 4))
    return TransposeTiles(kernel, few if by_rows else tile, tile if by_rows else few, block, width, piece)


_LAYOUT = {"x": "last"}
VARIANTS = {
    "naive": Implementation(transpose_naive, "reads coalesced, writes M apart", layout=_LAYOUT),
    "coalesced": Implementation(
        transpose_coalesced, "writes coalesced, strided reads left to the caches", layout=_LAYOUT
    ),
    "tiled": Implementation(transpose_tiled, "both coalesced, through shared memory", layout=_LAYOUT),
    "padded": Implementation(transpose_padded, "a padded tile: no bank conflicts", layout=_LAYOUT),
    "vectorized": Implementation(
        transpose_vectorized, "16 bytes per access, packed words, permuted tile", layout=_LAYOUT
    ),
}
