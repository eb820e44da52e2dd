"""Products of few rows in 16 bits: the columns of b are the rows of the products, the blocks of a cluster share K."""

from dataclasses import dataclass
from math import gcd

from kernelmux.backends.cuda._families.epilogue import PLAIN, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import cdiv, ctype
from kernelmux.backends.cuda.matmul._choice import MatmulPlan, MatmulProblem, problem, split_length
from kernelmux.backends.cuda.matmul._maps import NUMBERS, SWIZZLED, tiles
from kernelmux.backends.cuda.matmul._shares import SOURCE

MOST_ROWS = 64


@dataclass(frozen=True)
class FewRowsTile:
    """Rows and columns of c, stages of the ring, blocks of a cluster that share K, and that share a multiprocessor."""

    rows: int
    columns: int
    stages: int
    shares: int
    blocks: int

    def stage(self, k_major: bool) -> int:
        """Bytes of a stage, with rows of a that have K contiguous or not."""
        return (self.columns + (self.rows if k_major else 64)) * SWIZZLED


def takes(p: MatmulProblem) -> bool:
    """Whether a product has few enough rows: the time is that of reading b, once."""
    return p.batch is None and p.M <= MOST_ROWS and p.dtype.itemsize == 2


def tile_for(p: MatmulProblem, multiprocessors: int) -> FewRowsTile:
    """The tile, the number of blocks that share K, and a ring as long as there is room."""
    rows = next(n for n in (8, 16, 32, 64) if p.M <= n)
    count, steps = cdiv(p.N, 64), cdiv(p.K, 64)
    shares = next((n for n in (8, 4, 2) if n * count <= 2 * multiprocessors and 4 * n <= steps), 1)
    room = 225 if count * shares <= multiprocessors else 111 if count * shares <= 2 * multiprocessors else 73
    stages = (room << 10) // ((64 + (rows if p.left.k_major else 64)) * SWIZZLED + 16)
    return FewRowsTile(rows, 64, max(2, min(stages, cdiv(steps, shares))), shares, {225: 1, 111: 2, 73: 3}[room])


def plan(a: Layout, b: Layout, t: FewRowsTile, end: EpilogueKind = PLAIN.ending) -> MatmulPlan:
    """The product with a given tile; no extent is 0."""
    p, steps = problem(a, b), SWIZZLED // a.dtype.itemsize
    turned = p._replace(M=p.N, N=p.M, left=p.right, right=p.left)
    k_split = split_length(p.K, t.shares, steps)
    shares, count = cdiv(p.K, k_split), cdiv(p.N, t.columns)
    stages = max(t.stages, cdiv(t.rows * (t.columns + 4) * 4, t.stage(p.left.k_major)))
    kernel = SOURCE.kernel(
        "matmul_shares", f"a:map b:map {end.tensors} {NUMBERS} first:i32",
        ELEMENT=ctype(a.dtype), C_VECTOR=gcd(4, p.N), BLOCK_N=t.rows, CONSUMERS=1, HEIGHT=t.columns // 64, STAGES=stages,
        SHARES=shares, BLOCKS_PER_SM=t.blocks, TURNED=1, **turned.macros, **end.macros,
    )  # fmt: skip
    numbers = p.N, p.M, p.K, k_split, count, 0
    launch = kernel.bind(count * shares, 256, *numbers, shared=stages * (t.stage(p.left.k_major) + 16))
    a_tiles = tiles(p, p.left, p.M, t.rows if p.left.k_major else steps)
    b_tiles = tiles(p, p.right, p.N, t.columns if p.right.k_major else steps)
    return MatmulPlan(launch, p.shape, a_tiles, b_tiles)
