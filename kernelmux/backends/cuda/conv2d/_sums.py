"""Tiles of convolutions on the FP32 pipes, and the rule that chooses one and how many blocks share the K of a tile."""

from collections.abc import Iterator
from typing import NamedTuple

from kernelmux.backends.cuda._launch.runtime import cdiv
from kernelmux.backends.cuda.conv2d._problem import Convolution, operands
from kernelmux.registry.util.cards import Card

# What a tile takes to begin and end, as a length of K; microseconds that a step waits for memory, of the launch that adds
# parts, and of the blocks of a cluster that add theirs; bytes of parts and of sums per microsecond.
FILL, WAIT, SUM, SHARED, PARTS = 56, 0.8, 4.0, 1.0, 4e6
LEAST, SHORTEST = 128, 32  # of K, at least, in a piece, and in that of a block of a cluster


class ImageSumsTile(NamedTuple):
    """m x n of the result. rows, columns: of a thread. step: of K. rate: products per
    microsecond of a multiprocessor full of such blocks."""

    m: int
    n: int
    rate: float
    rows: int
    columns: int
    blocks: int
    step: int
    warps: int

    @property
    def defines(self) -> dict[str, int]:
        """What the kernel is compiled for."""
        return {
            "BLOCK_M": self.m, "BLOCK_N": self.n, "THREAD_M": self.rows, "THREAD_N": self.columns, "STEP_K": self.step,
            "WARPS_M": self.m // (8 * self.rows), "BLOCKS_PER_SM": self.blocks,
        }  # fmt: skip

    def step_time(self, resident: int) -> float:
        """Microseconds of a step of so many blocks that a multiprocessor has at a time."""
        work = self.m * self.n * self.step / self.rate
        return max(resident * work * (1.05 if resident < self.blocks else 1.0), WAIT + 1.3 * work)

    def tiles(self, c: Convolution) -> int:
        """Of the largest phase; the others have as many, some of them empty."""
        return cdiv(c.sizes[0], self.m) * cdiv(c.sizes[1], self.n)


# Rates as the times of an H200 leave them. There 128 x 128 with 8 x 16 sums of a thread is no quicker than 128 x 64: 512 of
# 1x1 on 16x256x28x28 128 us and 101, the gradient of 128 of 3x3 on 16x128x28x28 113 and 117.
TILES = (
    ImageSumsTile(128, 64, 1.38e5, 8, 8, blocks=3, step=16, warps=4),
    ImageSumsTile(64, 64, 1.18e5, 8, 4, blocks=4, step=16, warps=4),
    ImageSumsTile(32, 32, 0.7e5, 4, 4, blocks=8, step=32, warps=2),
)


class TermCut(NamedTuple):
    """A tile, the length and the number of the pieces of its K, and whether these are of the blocks of a cluster."""

    tile: ImageSumsTile
    length: int
    pieces: int
    shared: bool


def cut(c: Convolution, tile: ImageSumsTile, wanted: int, shared: bool) -> TermCut:
    """K in at most so many pieces."""
    K = c.sizes[2]
    length = max(1, cdiv(cdiv(K, wanted), tile.step)) * tile.step
    pieces = max(1, cdiv(K, length))
    return TermCut(tile, length, pieces, shared and pieces > 1)


def choice(c: Convolution, card: Card) -> TermCut:
    """The quickest."""
    return min(_cuts(c, card), key=lambda one: _microseconds(c, one, card.processors))


def in_one_launch(c: Convolution, card: Card) -> TermCut:
    """The quickest that is one launch."""
    cuts = (one for one in _cuts(c, card) if one.pieces == 1 or one.shared)
    return min(cuts, key=lambda one: _microseconds(c, one, card.processors))


def _cuts(c: Convolution, card: Card) -> Iterator[TermCut]:
    """Of every tile: K whole; in pieces that fill one round of multiprocessors; in those of a cluster."""
    for tile in TILES:
        room, tiles = card.processors * tile.blocks, max(1, tile.tiles(c) * c.phases)
        yield cut(c, tile, 1, False)
        if (wanted := min(room // tiles, c.sizes[2] // LEAST)) > 1:
            yield cut(c, tile, wanted, False)
        if card.capability >= (9, 0) and tile.m * tile.n <= 64 * 64:
            for shares in (2, 4, 8):
                if shares * SHORTEST <= c.sizes[2] and shares * tiles <= room:
                    yield cut(c, tile, shares, True)


def _microseconds(c: Convolution, one: TermCut, processors: int) -> float:
    """Of the multiprocessor that has most to do, and of what adds parts."""
    tile, (M, N, _) = one.tile, c.sizes
    blocks, room = tile.tiles(c) * c.phases * one.pieces, processors * tile.blocks
    last = cdiv(blocks % room, processors)
    step = blocks // room * tile.step_time(tile.blocks) + (tile.step_time(last) if last else 0.0)
    busy = step * (one.length + FILL) / tile.step
    if one.pieces == 1:
        return busy
    return busy + (SHARED if one.shared else SUM + one.pieces * c.phases * M * N * 8 / PARTS)


def vectors(c: Convolution) -> dict[str, int]:
    """Elements per load of the operands: four where they can be read in vectors at all."""
    return {
        f"{side}_VECTOR": 4 if access.copy == 16 else 1
        for side, access in zip(("LEFT", "RIGHT"), operands(c), strict=True)
    }
