"""Products of few rows in 16 bits: the columns of b are the rows of the products, the blocks of a cluster share K."""

from dataclasses import dataclass
from math import gcd

from kernelmux.backends.cuda._families.epilogue import PLAIN, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import Tiles, cdiv, ctype
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


def any_lines(b: Layout, k_axis: int) -> bool:
    """Whether K-major lines of b, one matrix, can be read where they lie although not all begin at multiples of 16 bytes:
    the first one does, and they do not overlap."""
    K, N = b.shape[k_axis], b.shape[1 - k_axis]
    return b.strides[k_axis] == 1 and b.strides[1 - k_axis] >= K >= 128 and b.offset == 0 and N >= 64


def in_turns(p: MatmulProblem) -> int:
    """Of b's K-major lines, how many until one begins a multiple of 16 bytes behind the first; 1 where all do."""
    return 16 // gcd(16, p.right.ld * p.dtype.itemsize)


def tile_for(p: MatmulProblem, multiprocessors: int) -> FewRowsTile:
    """The tile, the number of blocks that share K, and a ring as long as there is room."""
    rows = next(n for n in (8, 16, 32, 64) if p.M <= n)
    turns, steps = in_turns(p), cdiv(p.K, 64)
    count = turns * cdiv(cdiv(p.N, turns), 64)
    shares = next((n for n in (8, 4, 2) if n * count <= 2 * multiprocessors and 4 * n <= steps), 1)
    room = 225 if count * shares <= multiprocessors else 111 if count * shares <= 2 * multiprocessors else 73
    stages = (room << 10) // ((64 + (rows if p.left.k_major else 64)) * SWIZZLED + 16)
    return FewRowsTile(rows, 64, max(2, min(stages, cdiv(steps, shares))), shares, {225: 1, 111: 2, 73: 3}[room])


def plan(a: Layout, b: Layout, t: FewRowsTile, end: EpilogueKind = PLAIN.ending) -> MatmulPlan:
    """The product with a given tile; no extent is 0."""
    p, steps, turns = problem(a, b), SWIZZLED // a.dtype.itemsize, in_turns(problem(a, b))
    turned = p._replace(M=p.N, N=p.M, left=p.right, right=p.left)
    shares = next(n for n in range(t.shares, 0, -1) if n == 1 or p.K - (n - 1) * split_length(p.K, n, steps) > steps)
    k_split = split_length(p.K, shares, steps)
    count = turns * cdiv(cdiv(p.N, turns), t.columns)
    stages = max(t.stages, cdiv(t.rows * (t.columns + 4) * 4, t.stage(p.left.k_major)))
    more = {"TURNS": turns} if turns > 1 else {}
    fewer, line = ("fewer:map", "line:i32") if turns > 1 else ("", "")
    kernel = SOURCE.kernel(
        "matmul_shares", f"a:map b:map {fewer} {end.tensors} {NUMBERS} first:i32 {line}",
        ELEMENT=ctype(a.dtype), C_VECTOR=gcd(4, p.N) if turns == 1 else 1, BLOCK_N=t.rows, CONSUMERS=1,
        HEIGHT=t.columns // 64, STAGES=stages, SHARES=shares, BLOCKS_PER_SM=t.blocks, TURNED=1, **more,
        **turned.macros, **end.macros,
    )  # fmt: skip
    numbers = (p.N, p.M, p.K, k_split, count, 0, *((p.right.ld,) if turns > 1 else ()))
    launch = kernel.bind(count * shares, 256, *numbers, shared=stages * (t.stage(p.left.k_major) + 16))
    a_tiles = tiles(p, p.left, p.M, t.rows if p.left.k_major else steps)
    if turns == 1:
        return MatmulPlan(launch, p.shape, a_tiles, tiles(p, p.right, p.N, t.columns if p.right.k_major else steps))
    last = (p.N - 1) % turns  # turn of the last line
    longer, shorter = (
        _lines(p, turns, t.columns, *rows) for rows in ((cdiv(p.N, turns), last), (p.N // turns, turns - 1))
    )
    return MatmulPlan(launch, p.shape, a_tiles, longer, last=shorter)


def _lines(p: MatmulProblem, turns: int, columns: int, rows: int, last: int) -> Tiles:
    """So many rows, each of the lines of b of all turns up to the last one."""
    box = (columns, SWIZZLED // p.dtype.itemsize)
    return Tiles((rows, last * p.right.ld + p.K), (turns * p.right.ld, 1), box, swizzle=SWIZZLED)
