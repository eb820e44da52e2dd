"""Transpose on CUDA: the same bytes, moved better and better.

H200, 8192 x 8192 fp32 (a copy of as many bytes takes 129 us):

naive       957 us  reads coalesced, writes M elements apart
coalesced   284 us  writes coalesced, reads strided: loads are cached, stores are not
tiled       312 us  both coalesced through a tile in shared memory, but its columns sit in one bank: 32 conflicts a read
padded      168 us  one unused column: a column of the tile falls in different banks
vectorized  138 us  16 bytes per access on both sides, small elements packed into words, the tile permuted, not padded
"""

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES, common_width
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, bits_type, cdiv
from kernelmux.registry.backend import Implementation
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__)
VECTORIZED = Source(__file__, "transpose_vectorized.cu")
UNALIGNED = Source(__file__, "transpose_unaligned.cu")
_SIGNATURE = "x* y* M:i32 N:i32 ldx:i64"
_TILE, _TILE_ROWS = 32, 8  # 256 threads: each moves 4 elements
# Tile along M and N and threads, by item size. H200, 8192 x 8192: 44, 72, 138 and 284 us, which are 71, 88, 92 and
# 88 % of what a large copy reaches.
_TILES = {1: (128, 128, 256), 2: (128, 128, 256), 4: (64, 64, 256), 8: (32, 32, 128)}
_UNALIGNED_TILES = {1: (128, 128, 256), 2: (64, 64, 256), 4: (64, 64, 256), 8: (32, 32, 128)}


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
    aligned = common_width((x,)) * x.element_size() == ACCESS_BYTES
    _by_tiles(matrices, M, N, x.stride(1), x.stride(0), x.dtype, aligned)(x, y)
    return y


@remembered
def _by_tiles(matrices: int, M: int, N: int, ldx: int, apart: int, dtype: torch.dtype, aligned: bool) -> BoundLaunch:
    size = dtype.itemsize
    aligned = aligned and not (M | N | ldx | (apart if matrices > 1 else 0)) * size % ACCESS_BYTES
    source, entry = (VECTORIZED, "transpose_vectorized") if aligned else (UNALIGNED, "transpose_unaligned")
    tile_m, tile_n, block = (_TILES if aligned else _UNALIGNED_TILES)[size]
    kernel = source.kernel(
        entry, f"{_SIGNATURE} apart:i64", ELEMENT=bits_type(dtype), TILE_M=tile_m, TILE_N=tile_n, BLOCK=block
    )
    return kernel.bind((cdiv(M, tile_m) * cdiv(N, tile_n), matrices), block, M, N, ldx, apart)


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
