"""Few long rows in pieces: a launch that looks at them, and the next one, which starts early and makes results of that."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype, next_power
from kernelmux.registry.util.cards import remembered

_SOURCE = Source(__file__, "cross_entropy_pieces.cu")
_WARP = 32
MOST_PIECES = 16 * _WARP  # of a row: for each lane of the warp that puts them together
# Of a piece: threads, and vectors of each. H200, bf16, us by two and four vectors: 1 x 1000000 9.2 and 7.6, 2 x 400000 7.4
# and 7.9.
PIECE, VECTORS = 256, 4
# Bytes of a row at least, and of the only one; below, clusters. H200, bf16, us by clusters and in pieces: 2 x 400000 10.7
# and 7.9, 16 x 128256 9.4 and 9.3, 64 x 50257 10.1 and 11.2; 1 x 1000000 14.8 and 7.6, 1 x 128256 6.1 and 7.6.
_LONG, _LONG_ALONE = 2**17, 2**19


class LossInPieces(NamedTuple):
    """Two launches, and how many numbers the first leaves to the second."""

    look: BoundLaunch
    last: BoundLaunch
    numbers: int

    def __call__(self, logits: torch.Tensor, target: torch.Tensor, *results: torch.Tensor | None) -> None:
        states = torch.empty(self.numbers, dtype=torch.float32, device=logits.device)
        self.look(logits, states)
        self.last(logits, target, states, *results)


def pieces_of(size: int) -> int:
    """How many pieces a row of `size` bytes has."""
    return cdiv(size, PIECE * VECTORS * ACCESS_BYTES)


def launches(
    source: Source, entry: str, results: str, grid: int, block: int, rows: int, n: int, step: int, dtype: torch.dtype,
    ignored: int, smoothing: float, aligned: bool, **more: object,
) -> LossInPieces:  # fmt: skip
    """Of which the last is `entry` of the source."""
    pieces, smoothed = pieces_of(n * dtype.itemsize), int(smoothing != 0)
    defines: dict[str, object] = {
        "ELEMENT": ctype(dtype), "WIDTH": ACCESS_BYTES // dtype.itemsize, "GROUP": PIECE, "UNROLL": VECTORS,
        "STATES": cdiv(pieces, _WARP), "SMOOTHED": smoothed, "ALIGNED": int(aligned),
    }  # fmt: skip
    look = _SOURCE.kernel("cross_entropy_look", "logits* states* n:i32 step:i64 pieces:i32", **defines)
    numbers = "rows:i32 n:i32 step:i64 ignored:i64 smoothing:f32 pieces:i32"
    last = source.kernel(entry, f"logits* target* states* {results} {numbers}", **defines, **more)
    return LossInPieces(
        look.bind(rows * pieces, PIECE, n, step, pieces),
        last.bind(grid, block, rows, n, step, ignored, smoothing, pieces, follows=True),
        2 * rows * pieces * (1 + smoothed),
    )


@remembered
def in_pieces(
    rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float, aligned: bool, reduction: str,
    processors: int,
) -> LossInPieces | None:  # fmt: skip
    """cross_entropy so; None unless rows are long, and no more than multiprocessors."""
    size = n * dtype.itemsize
    if rows > processors or size < (_LONG_ALONE if rows == 1 else _LONG) or pieces_of(size) > MOST_PIECES:
        return None
    threads = min(1024, next_power(rows) * _WARP)
    return launches(
        _SOURCE, "cross_entropy_last", "lse* loss*", 1, threads, rows, n, step, dtype, ignored, smoothing, aligned,
        WANTED=reduction.upper(), LAST_THREADS=threads,
    )  # fmt: skip
