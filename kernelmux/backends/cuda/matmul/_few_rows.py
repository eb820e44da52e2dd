"""Products of some rows in 16 bits: the columns of b are the rows of the products.

Blocks of a cluster share K, or fetch once what several of them need.
"""

from dataclasses import dataclass, replace
from math import gcd

from kernelmux.backends.cuda._families import vectors
from kernelmux.backends.cuda._families.epilogue import PLAIN, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import cdiv, ctype
from kernelmux.backends.cuda.matmul import _shares
from kernelmux.backends.cuda.matmul._choice import HOPPER_MEMORY, MatmulPlan, MatmulProblem, problem, split_length
from kernelmux.backends.cuda.matmul._maps import NUMBERS, SWIZZLED, tiles
from kernelmux.backends.cuda.matmul._shares import SOURCE

MOST_ROWS = 64
MOST_VECTORS, LONG = 3, 4096  # rows that may be multiplied as vectors; K from which more than one is
MANY_ROWS = range(72, 321, 8)  # of a tile of two consumers
MOST_TILES = 8  # below one another
# Clusters for which there is room at one time, out of 132: an H100 that was asked has it for 39 of 3, 17 of 6 and 15 of 8.
ROOM = {1: 132, 6: 15, **_shares.ROOM}
# In a microsecond: products of a multiprocessor with tiles of 128 columns or more, and with 64; bytes that L2 gives to all,
# by the multiples of bytes at which lines begin. Microseconds that a stage takes beside its products, and one that several
# blocks fetch; that a product takes to begin and end beside a `Tiling`'s, and each share of K to add its sums. Of what
# another block reads too, but does not fetch for all, so much counts as if it came from memory. H100, 42 products of 80 to
# 1000 rows: what is chosen takes 1.3 % longer in the mean than the quickest of up to 58 tiles and those of `_wgmma`.
RATE, NARROW_RATE = 3.4e6, 3.3e6
FROM_L2 = {128: 10.3e6, 32: 8e6, 16: 4.7e6}
STAGE, FETCHED_TOGETHER = 0.025, {128: 0.06, 32: 0.01, 16: 0.01}
BEGIN, SHARE, READ_AGAIN = 0.4, 1.6, 0.2
ENOUGH, NEARLY_HALF = 0.6, 0.45  # blocks to a multiprocessor that read b as fast as more do, alone and shared


@dataclass(frozen=True)
class TurnedTile:
    """Rows and columns of c, stages of the ring, blocks of a cluster that share K, and that share a multiprocessor."""

    rows: int
    columns: int
    stages: int
    shares: int
    blocks: int
    consumers: int = 1  # warpgroups that multiply
    across: int = 1  # blocks of a cluster that have the same columns, and fetch them together
    down: int = 1  # likewise the same rows
    together: int = 1  # steps of K whose copies are asked for at one time

    @property
    def peers(self) -> int:
        return self.across * self.down

    def tiles(self, p: MatmulProblem) -> int:
        """Of which some of a cluster may be empty."""
        return self.peers * cdiv(p.M, self.across * self.rows) * cdiv(p.N, self.down * self.columns)

    def stage(self, k_major: bool) -> int:
        """Bytes of a stage, with rows of a that have K contiguous or not."""
        return (self.columns + (self.rows if k_major else cdiv(self.rows, 64) * 64)) * SWIZZLED

    def microseconds(self, p: MatmulProblem) -> float:
        """A rough time, as of a `Tiling`: of the products, or of what L2 gives to all blocks, or of reading everything."""
        lines, stages = p.line_multiple, cdiv(cdiv(p.K, 64), self.shares)
        read = self.tiles(p) * self.shares * (self.columns / self.across + self.rows / self.down) * SWIZZLED
        products = self.rows * self.columns * 64 / (RATE if self.columns > 64 else NARROW_RATE) + STAGE
        together = FETCHED_TOGETHER[lines] if self.peers > 1 else 0
        again = READ_AGAIN * (cdiv(p.M, self.across * self.rows) - 1) * p.K * p.N * p.dtype.itemsize
        work = stages * max(products + together, read / FROM_L2[lines])
        begin = BEGIN + (SHARE * self.shares if self.shares > 1 else 0)
        return max(work, (p.bytes + again) / HOPPER_MEMORY + 0.05 * work) + begin


def takes(p: MatmulProblem) -> bool:
    """Whether a product has few enough rows: the time is that of reading b, once."""
    return p.batch is None and p.M <= MOST_ROWS and p.dtype.itemsize == 2


def vectors_plan(a: Layout, b: Layout, end: EpilogueKind) -> MatmulPlan | None:
    """The plan of so few rows that it is faster to multiply them on the FP32 pipes; None for others.

    H200, us, on the FP32 pipes and not: 4096 by 4096 x 28672 58.2 and 65.3, two rows 61.1 and 66.1, three 64.6 and
    65.7, four 67.8 and 65.8; 3072 by 3072 x 8192 18.5 and 19.3, two rows 23.5 and 19.3.
    """
    p = problem(a, b)
    few = p.M == 1 or (p.M <= MOST_VECTORS and p.K >= LONG)
    if not (few and p.left.k_major and p.right.k_major):
        return None
    x, weight = (
        Layout((p.M, p.K), (p.left.ld, 1), p.dtype, a.offset),
        Layout((p.N, p.K), (p.right.ld, 1), p.dtype, b.offset),
    )
    return MatmulPlan(vectors.launch(weight, x, end), p.shape)


def tile_for(p: MatmulProblem, multiprocessors: int) -> TurnedTile:
    """Tiles of 128 columns, whose lines of b are long where N is contiguous. Where they are few, half as wide ones may give
    nearly every multiprocessor one; else blocks share K, one on a multiprocessor: of two on one, others have none. Of more
    than run at a time, half as wide ones may fill a round.

    H200, us: 56 x 5120 by 5120 x 5120 22.6 in pairs, 28.7 in threes; 32 x 8192 by 8192 x 8192 41.1 in pairs, 46.4 alone; of
    128 columns and of 64 16 x 4096 by 4096 x 14336 36.0 and 40.2, 40 x 4096 by 4096 x 50304 122.1 and 119.7; of 128 in
    pairs and of 64 16 x 5120 by 5120 x 5120 21.4 and 19.7, 64 x 2048 by 2048 x 5632 14.0 and 12.3. Two steps of K at a
    time: 16 x 4096 by 4096 x 28672 66.7, one by one 70.2.
    """
    rows, wide, narrow, slots = rows_for(p), cdiv(p.N, 128), cdiv(p.N, 64), 2 * multiprocessors
    one_each = ENOUGH * multiprocessors <= narrow <= multiprocessors
    fewer_rounds = wide > slots and cdiv(narrow, slots) < 2 * cdiv(wide, slots)
    columns = 64 if one_each or fewer_rounds else 128
    shares = shares_for(cdiv(p.N, columns), p.K, multiprocessors, ENOUGH)
    blocks = 1 if one_each or shares > 1 else 2
    return _with_ring(TurnedTile(rows, columns, 2, shares, blocks, together=2), p.left.k_major)


def many_rows(p: MatmulProblem, multiprocessors: int) -> TurnedTile | None:
    """The tile of a product with more than those few rows, where all tiles, or shares of their K, run at one time. Rows are
    divided evenly. Blocks that fetch together read less from L2, which is what products wait for whose lines begin at odd
    multiples of 16 bytes.

    H100, us, and by tiles of c: 400 x 5120 by 5120 x 5120 39.8 as three times 136 and 47.8; 900 x 4096 by 4096 x 4096 44.2
    as four times 232 and 51.4; 100 x 4096 by 4096 x 4096 20.2 with 64 columns and 23.0; 263 x 3824 by 3824 x 7432 39.5 as
    twice 136, fetched by fours, and 45.8 (44.2 if not together); 734 x 2904 by 2904 x 3000 29.9 as four times 184, by
    fours, and 41.9.
    """
    if p.M <= MOST_ROWS or p.batch is not None or p.dtype.itemsize != 2:
        return None
    tiles = _tiles_for(p, multiprocessors)
    return _with_ring(min(tiles, key=lambda t: t.microseconds(p)), p.left.k_major) if tiles else None


def _tiles_for(p: MatmulProblem, multiprocessors: int) -> list[TurnedTile]:
    lines = p.line_multiple
    whole = lines == 128  # of these four blocks gain nothing, and with tiles of 64 columns two do not either
    tiles = [
        TurnedTile(rows, columns, 2, shares, 1, min(2, columns // 64), across, down)
        for below, rows in _divided(p.M)
        for columns in (128, 64, 256)
        if rows <= {128: 320, 64: 192, 256: 128 if lines == 16 else 0}[columns]
        for across, down in ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4))[: 5 if not whole else 4 if columns > 64 else 1]
        if columns >= 64 * across
        for shares in (1, 2, 3, 4)
        if below % across == 0 and across * down * shares in ROOM and shares * 256 <= p.K
    ]
    return [t for t in tiles if t.tiles(p) // t.peers * 132 <= ROOM[t.peers * t.shares] * multiprocessors]


def _divided(M: int) -> list[tuple[int, int]]:
    """Tiles below one another and their rows."""
    evenly = ((n, cdiv(cdiv(M, n), 8) * 8) for n in range(1, MOST_TILES + 1))
    return [(n, rows) for n, rows in evenly if rows in MANY_ROWS]


def rows_for(p: MatmulProblem) -> int:
    """Those of a tile: columns of an instruction."""
    return next(n for n in (8, 16, 32, 64) if p.M <= n)


def shares_for(tiles: int, K: int, multiprocessors: int, enough: float) -> int:
    """One block for each tile if these are so many to a multiprocessor, else the fewest that make nearly half as many."""
    if tiles >= enough * multiprocessors:
        return 1
    fit = [n for n in (2, 4, 8) if tiles * 132 <= ROOM[n] * multiprocessors and n * 256 <= K]
    return next((n for n in fit if n * tiles >= NEARLY_HALF * multiprocessors), fit[-1] if fit else 1)


def _with_ring(t: TurnedTile, k_major: bool) -> TurnedTile:
    """The tile with as many stages as blocks that share a multiprocessor have room for."""
    room = 111 if t.blocks == 2 else 227 if t.rows > MOST_ROWS else 200
    return replace(t, stages=(room << 10) // (t.stage(k_major) + 16))


def plan(a: Layout, b: Layout, t: TurnedTile, end: EpilogueKind = PLAIN.ending) -> MatmulPlan:
    """The product with a given tile; no extent is 0."""
    p, steps = problem(a, b), SWIZZLED // a.dtype.itemsize
    turned = p._replace(M=p.N, N=p.M, left=p.right, right=p.left)
    k_split = split_length(p.K, t.shares, steps)
    shares, across = cdiv(p.K, k_split), cdiv(p.M, t.rows)
    count = t.tiles(p)
    alone = shares == 1 and t.rows > MOST_ROWS
    end_bytes = cdiv(t.rows, 16) * 16 * (t.columns + 8) * 2 if alone else t.rows * (t.columns + 4) * 4
    stages = max(t.stages, cdiv(end_bytes, t.stage(p.left.k_major)))
    kernel = SOURCE.kernel(
        "matmul_shares", f"a:map b:map {end.tensors} {NUMBERS} first:i32",
        ELEMENT=ctype(a.dtype), C_VECTOR=gcd(8 if alone else 4, p.N), BLOCK_N=t.rows, CONSUMERS=t.consumers,
        HEIGHT=t.columns // 64 // t.consumers, STAGES=stages,
        SHARES=shares, BLOCKS_PER_SM=t.blocks, TURNED=1, FOLLOWS=1, **({"SEVERAL": 1} if across > t.across else {}),
        **({"ACROSS": t.across, "DOWN": t.down} if t.peers > 1 else {}),
        **({"TOGETHER": t.together} if t.together > 1 else {}),
        **turned.macros, **end.macros,
    )  # fmt: skip
    numbers = p.N, p.M, p.K, k_split, count, 0
    shared = stages * (t.stage(p.left.k_major) + 16)
    launch = kernel.bind(count * shares, 128 * (1 + t.consumers), *numbers, shared=shared, follows=True)
    a_tiles = tiles(p, p.left, p.M, (t.rows if p.left.k_major else steps) // t.down)
    b_tiles = tiles(p, p.right, p.N, t.columns // t.across if p.right.k_major else steps)
    return MatmulPlan(launch, p.shape, a_tiles, b_tiles)
