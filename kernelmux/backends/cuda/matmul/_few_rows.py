"""Products of few rows in 16 bits: the columns of b are the rows of the products, the blocks of a cluster share K."""

from dataclasses import dataclass, replace
from math import gcd

from kernelmux.backends.cuda._families.epilogue import PLAIN, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import cdiv, ctype
from kernelmux.backends.cuda.matmul._choice import HOPPER_MEMORY, MatmulPlan, MatmulProblem, problem, split_length
from kernelmux.backends.cuda.matmul._maps import NUMBERS, SWIZZLED, tiles
from kernelmux.backends.cuda.matmul._shares import ROOM, SOURCE

MOST_ROWS = 64
MANY_ROWS = range(96, 321, 16)  # of a tile of two consumers
OUTSIDE = 24  # rows of the last tile that is not the only one
# In a microsecond: products of a multiprocessor, and bytes that L2 gives to all, five sectors of 32 for four. Microseconds
# that blocks take to begin and to add their sums.
RATE, ODD_FROM_L2, SHARING = 2.9e6, 6.3e6, 7.0
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

    def stage(self, k_major: bool) -> int:
        """Bytes of a stage, with rows of a that have K contiguous or not."""
        return (self.columns + (self.rows if k_major else cdiv(self.rows, 64) * 64)) * SWIZZLED

    def microseconds(self, p: MatmulProblem) -> float:
        """A rough time, as of a `Tiling`, or that in which L2 gives lines at odd multiples of 16 bytes to all blocks."""
        odd = any(x.ld * p.dtype.itemsize % 32 for x in (p.left, p.right))
        read = cdiv(p.M, self.rows) * cdiv(p.N, self.columns) * self.shares * (self.rows + self.columns) * 160
        stage = max(self.rows * self.columns * 64 / RATE, read / ODD_FROM_L2 if odd else 0.0)
        work = cdiv(cdiv(p.K, 64), self.shares) * stage + SHARING
        return max(work, p.bytes / HOPPER_MEMORY + 0.1 * work)


def takes(p: MatmulProblem) -> bool:
    """Whether a product has few enough rows: the time is that of reading b, once."""
    return p.batch is None and p.M <= MOST_ROWS and p.dtype.itemsize == 2


def tile_for(p: MatmulProblem, multiprocessors: int) -> TurnedTile:
    """Tiles of 128 columns, whose lines of b are long where N is contiguous. Where they are few, blocks share K, one on a
    multiprocessor: of two on one, others have none. Of more than run at a time, half as wide ones may fill a round.

    H200, us: 56 x 5120 by 5120 x 5120 22.6 in pairs, 28.7 in threes; 32 x 8192 by 8192 x 8192 41.1 in pairs, 46.4 alone; of
    128 columns and of 64 16 x 4096 by 4096 x 14336 36.0 and 40.2, 40 x 4096 by 4096 x 50304 122.1 and 119.7.
    """
    rows, wide, slots = rows_for(p), cdiv(p.N, 128), 2 * multiprocessors
    columns = 64 if wide > slots and cdiv(cdiv(p.N, 64), slots) < 2 * cdiv(wide, slots) else 128
    shares = shares_for(cdiv(p.N, columns), p.K, multiprocessors, ENOUGH)
    return _with_ring(TurnedTile(rows, columns, 2, shares, 2 if shares == 1 else 1), p.left.k_major)


def many_rows(p: MatmulProblem, multiprocessors: int) -> TurnedTile | None:
    """The tile of a product with more than those few rows, where there are so few tiles that blocks share K. Rows are all
    in one tile, or divided evenly: a box that is outside for the most part arrives late.

    H200, us, and by tiles of c: 263 x 7432 by 7432 x 3824 47.3 in threes and 65.0, 201 x 5120 by 5120 x 3072 23.9 in fours
    and 26.7; 350 x 11008 by 11008 x 4096 51.6 as twice 176 in pairs and 58.5. 200 x 8192 by 8192 x 4096, in pairs, 34.9 as
    twice 112 and 45.4 as 128 and 72.
    """
    if p.M <= MOST_ROWS or p.batch is not None or p.dtype.itemsize != 2:
        return None
    tiles = [
        TurnedTile(rows, 128, 2, shares, 1, consumers=2)
        for across, rows in _divided(p.M)
        for shares, room in ROOM.items()
        if across * cdiv(p.N, 128) * 132 <= room * multiprocessors and shares * 256 <= p.K
    ]
    return _with_ring(min(tiles, key=lambda t: t.microseconds(p)), p.left.k_major) if tiles else None


def _divided(M: int) -> list[tuple[int, int]]:
    """Tiles below one another and their rows, of which those that divide M leave no more than `OUTSIDE`."""
    evenly = [(n, max(MANY_ROWS[0], cdiv(cdiv(M, n), 16) * 16)) for n in range(1, 9)]
    return [(n, rows) for n, rows in evenly if rows in MANY_ROWS and (n == 1 or n * rows - M <= OUTSIDE)]


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
    room = 111 if t.blocks == 2 else 200
    return replace(t, stages=(room << 10) // (t.stage(k_major) + 16))


def plan(a: Layout, b: Layout, t: TurnedTile, end: EpilogueKind = PLAIN.ending) -> MatmulPlan:
    """The product with a given tile; no extent is 0."""
    p, steps = problem(a, b), SWIZZLED // a.dtype.itemsize
    turned = p._replace(M=p.N, N=p.M, left=p.right, right=p.left)
    k_split = split_length(p.K, t.shares, steps)
    shares, across = cdiv(p.K, k_split), cdiv(p.M, t.rows)
    count = across * cdiv(p.N, t.columns)
    stages = max(t.stages, cdiv(t.rows * (t.columns + 4) * 4, t.stage(p.left.k_major)))
    kernel = SOURCE.kernel(
        "matmul_shares", f"a:map b:map {end.tensors} {NUMBERS} first:i32",
        ELEMENT=ctype(a.dtype), C_VECTOR=gcd(4, p.N), BLOCK_N=t.rows, CONSUMERS=t.consumers,
        HEIGHT=t.columns // 64 // t.consumers, STAGES=stages,
        SHARES=shares, BLOCKS_PER_SM=t.blocks, TURNED=1, FOLLOWS=1, **({"SEVERAL": 1} if across > 1 else {}),
        **turned.macros, **end.macros,
    )  # fmt: skip
    numbers = p.N, p.M, p.K, k_split, count, 0
    shared = stages * (t.stage(p.left.k_major) + 16)
    launch = kernel.bind(count * shares, 128 * (1 + t.consumers), *numbers, shared=shared, follows=True)
    a_tiles = tiles(p, p.left, p.M, t.rows if p.left.k_major else steps)
    b_tiles = tiles(p, p.right, p.N, t.columns if p.right.k_major else steps)
    return MatmulPlan(launch, p.shape, a_tiles, b_tiles)
