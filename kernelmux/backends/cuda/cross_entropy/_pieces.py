"""Few long rows in pieces: a launch that looks at them, and what the next one, which starts early, needs to know."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype, next_power
from kernelmux.registry.util.cards import remembered

_SOURCE = Source(__file__, "cross_entropy_pieces.cu")
_WARP = 32
_MOST_STATES = 16  # pieces of a row for each lane of the warp that puts them together
# Of a piece: threads, and vectors of each. H200, bf16, us by two and four vectors: 1 x 1000000 9.2 and 7.6, 2 x 400000 7.4
# and 7.9.
_PIECE, _VECTORS = 256, 4
# Bytes of a row at least, and of the only one; below, clusters. H200, bf16, us by clusters and in pieces: 2 x 400000 10.7
# and 7.9, 16 x 128256 9.4 and 9.3, 64 x 50257 10.1 and 11.2; 1 x 1000000 14.8 and 7.6, 1 x 128256 6.1 and 7.6.
_LONG, _LONG_ALONE = 2**17, 2**19


class RowParts(NamedTuple):
    """How rows fall to blocks: threads of a block, and of a piece if a cluster has so many blocks of them (0: none has the
    row, and a piece is a block's); vectors of a thread; blocks and parts of a row, each of which leaves a state."""

    threads: int
    group: int
    shared_by: int
    vectors: int
    blocks: int
    parts: int

    def defines(self, dtype: torch.dtype, smoothing: float, aligned: bool) -> dict[str, object]:
        return {
            "ELEMENT": ctype(dtype), "WIDTH": ACCESS_BYTES // dtype.itemsize, "GROUP": self.group,
            "THREADS": self.threads, "UNROLL": self.vectors, "WHOLE": int(not self.shared_by),
            "SHARED_BY": max(1, self.shared_by), "STATES": cdiv(self.parts, _WARP), "SMOOTHED": int(smoothing != 0),
            "ALIGNED": int(aligned),
        }  # fmt: skip

    def look(
        self, rows: int, n: int, step: int, dtype: torch.dtype, smoothing: float, aligned: bool
    ) -> tuple[int, BoundLaunch]:
        """Numbers that the launch leaves, and the launch."""
        kernel = _SOURCE.kernel(
            "cross_entropy_look", "logits* states* n:i32 step:i64 blocks:i32 parts:i32",
            **self.defines(dtype, smoothing, aligned),
        )  # fmt: skip
        launch = kernel.bind(rows * self.blocks, self.threads, n, step, self.blocks, self.parts)
        return rows * self.parts * (4 if smoothing else 2), launch


def whole_pieces(size: int, threads: int = _PIECE, vectors: int = _VECTORS) -> RowParts | None:
    """Of a row of `size` bytes; None if they are more than a warp takes."""
    parts = cdiv(size, threads * vectors * ACCESS_BYTES)
    return RowParts(threads, threads, 0, vectors, parts, parts) if parts <= _MOST_STATES * _WARP else None


def parts_of_clusters(threads: int, cluster: int, group: int, vectors: int) -> RowParts:
    """As clusters of so many blocks of `group` threads have rows, in blocks of `threads`."""
    shared = cluster * group
    return RowParts(threads, group, cluster, vectors, shared // threads, shared // _WARP)


@remembered
def in_pieces(
    rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float, aligned: bool, reduction: str,
    processors: int,
) -> tuple[int, BoundLaunch, BoundLaunch] | None:  # fmt: skip
    """Numbers that the launches of cross_entropy share, and these; None unless rows are long, and no more than
    multiprocessors."""
    size = n * dtype.itemsize
    pieces = whole_pieces(size)
    if pieces is None or size < (_LONG_ALONE if rows == 1 else _LONG) or rows > processors:
        return None
    return launches(pieces, rows, n, step, dtype, ignored, smoothing, aligned, reduction)


def launches(
    pieces: RowParts, rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float, aligned: bool,
    reduction: str,
) -> tuple[int, BoundLaunch, BoundLaunch]:  # fmt: skip
    numbers, look = pieces.look(rows, n, step, dtype, smoothing, aligned)
    threads = min(1024, next_power(rows) * _WARP)
    last = _SOURCE.kernel(
        "cross_entropy_last",
        "logits* target* states* lse* loss* rows:i32 n:i32 step:i64 ignored:i64 smoothing:f32 parts:i32",
        **pieces.defines(dtype, smoothing, aligned), WANTED=reduction.upper(), LAST_THREADS=threads,
    )  # fmt: skip
    bound = last.bind(1, threads, rows, n, step, ignored, smoothing, pieces.parts, follows=True)
    return numbers, look, bound
