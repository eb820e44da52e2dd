"""Products of few rows in 16 bits: the columns of b are the rows of the products, the blocks of a cluster share K."""

from dataclasses import dataclass, replace
from math import gcd

from kernelmux.backends.cuda._families.epilogue import PLAIN, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import cdiv, ctype
from kernelmux.backends.cuda.matmul._choice import MatmulPlan, MatmulProblem, problem, split_length
from kernelmux.backends.cuda.matmul._maps import NUMBERS, SWIZZLED, tiles
from kernelmux.backends.cuda.matmul._shares import ROOM, SOURCE

MOST_ROWS = 64
FEWEST = 0.6  # blocks to a multiprocessor: of them no more than these read as fast


@dataclass(frozen=True)
class FewRowsTile:
    """Rows and columns of c, stages of the ring, blocks of a cluster that share K, and that share a multiprocessor; stages
    that are asked for together."""

    rows: int
    columns: int
    stages: int
    shares: int
    blocks: int
    at_once: int = 1

    def stage(self, k_major: bool) -> int:
        """Bytes of a stage, with rows of a that have K contiguous or not."""
        return (self.columns + (self.rows if k_major else 64)) * SWIZZLED


def takes(p: MatmulProblem) -> bool:
    """Whether a product has few enough rows: the time is that of reading b, once."""
    return p.batch is None and p.M <= MOST_ROWS and p.dtype.itemsize == 2


def tile_for(p: MatmulProblem, multiprocessors: int) -> FewRowsTile:
    """Where tiles are few, blocks share their K until most multiprocessors have one: of two on one, others have none."""
    rows = next(n for n in (8, 16, 32, 64) if p.M <= n)
    found = [(columns, _shares(cdiv(p.N, columns), p.K, multiprocessors)) for columns in (128, 64)]
    columns, shares = max(found, key=lambda t: min(t[1] * cdiv(p.N, t[0]), FEWEST * multiprocessors))
    room = 111 if shares == 1 and cdiv(p.N, columns) > multiprocessors // 2 else 200
    tile = FewRowsTile(rows, columns, 2, shares, 2 if room == 111 else 1)
    return replace(tile, stages=max(2, (room << 10) // (tile.stage(p.left.k_major) + 16)))


def _shares(tiles: int, K: int, multiprocessors: int) -> int:
    """The fewest blocks for each tile that make enough, or the most that find room."""
    fit = [n for n in (1, *ROOM) if n == 1 or (tiles * 132 <= ROOM[n] * multiprocessors and n * 256 <= K)]
    return next((n for n in fit if n * tiles >= FEWEST * multiprocessors), fit[-1])


def plan(a: Layout, b: Layout, t: FewRowsTile, end: EpilogueKind = PLAIN.ending) -> MatmulPlan:
    """The product with a given tile; no extent is 0."""
    p, steps = problem(a, b), SWIZZLED // a.dtype.itemsize
    turned = p._replace(M=p.N, N=p.M, left=p.right, right=p.left)
    k_split = split_length(p.K, t.shares, steps)
    shares, count = cdiv(p.K, k_split), cdiv(p.N, t.columns)
    stages = max(t.stages, cdiv(t.rows * (t.columns + 4) * 4, t.stage(p.left.k_major)), t.at_once + 1)
    kernel = SOURCE.kernel(
        "matmul_shares", f"a:map b:map {end.tensors} {NUMBERS} first:i32",
        ELEMENT=ctype(a.dtype), C_VECTOR=gcd(4, p.N), BLOCK_N=t.rows, CONSUMERS=1, HEIGHT=t.columns // 64, STAGES=stages,
        SHARES=shares, BLOCKS_PER_SM=t.blocks, TURNED=1, **({"AT_ONCE": t.at_once} if t.at_once > 1 else {}),
        **turned.macros, **end.macros,
    )  # fmt: skip
    numbers = p.N, p.M, p.K, k_split, count, 0
    launch = kernel.bind(count * shares, 256, *numbers, shared=stages * (t.stage(p.left.k_major) + 16))
    a_tiles = tiles(p, p.left, p.M, t.rows if p.left.k_major else steps)
    b_tiles = tiles(p, p.right, p.N, t.columns if p.right.k_major else steps)
    return MatmulPlan(launch, p.shape, a_tiles, b_tiles)
