"""matmul of few rows through TMA and wgmma, on sm_90: blocks of a cluster share K, and add their sums among themselves."""

from dataclasses import dataclass
from math import gcd

from kernelmux.backends.cuda._families.epilogue import PLAIN, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import Source, cdiv, ctype
from kernelmux.backends.cuda.matmul._choice import MatmulPlan, MatmulProblem, Tiling, problem, split_length
from kernelmux.backends.cuda.matmul._maps import NUMBERS, SWIZZLED, tiles

SOURCE = Source(__file__, "matmul_few_rows.cu")
THREADS = 256
SHARES = (8, 4, 2)  # blocks of a cluster; six of them find no room often enough
FEWEST, MOST = 0.9, 1.5  # blocks to a multiprocessor
TILES = 0.25  # of one share to a multiprocessor: of more, those of one piece read as fast


@dataclass(frozen=True)
class FewRowsTiling(Tiling):
    """64 rows by n columns; blocks: that share a multiprocessor."""

    stages: int
    blocks: int = 1

    @property
    def shared(self) -> int:
        """Bytes of the stages and of their barriers."""
        return self.stages * ((self.m + self.n) * SWIZZLED + 16)

    def shares(self, p: MatmulProblem, multiprocessors: int) -> int:
        """Into how many pieces K is best cut, each of 256 or more."""
        tiles = self.tiles(p)
        return next((n for n in SHARES if n * tiles <= MOST * multiprocessors and n * 256 <= p.K), 1)


TILINGS = FewRowsTiling(64, 128, 2.15e6, 4, blocks=2), FewRowsTiling(64, 64, 1.4e6, 6, blocks=2)


def takes(p: MatmulProblem) -> bool:
    """Whether a product has few enough rows: the time is that of reading b, once."""
    return p.batch is None and p.M <= 64 and p.dtype.itemsize == 2


def choice(p: MatmulProblem, multiprocessors: int) -> tuple[FewRowsTiling, int] | None:
    """The tiling and the number of shares; None where there is no use for several.

    H200, bf16: 48 x 8192 by 8192 x 1024 takes 13.8 us in eight shares of tiles of 64 columns, 15.3 of 128, 27.9 in one
    piece; 56 x 5120 by 5120 x 5120 22.1 in four shares and 22.5 in one, 64 x 3584 by 3584 x 4608 18.9 and 18.0.
    """
    if not takes(p) or TILINGS[0].tiles(p) > TILES * multiprocessors:
        return None
    found = [(t, t.shares(p, multiprocessors)) for t in TILINGS]
    wide, narrow = (t.tiles(p) * shares for t, shares in found)
    tiling, shares = found[0] if wide >= FEWEST * multiprocessors or wide >= narrow else found[1]
    return (tiling, shares) if shares > 1 else None


def plan(a: Layout, b: Layout, t: FewRowsTiling, shares: int, end: EpilogueKind = PLAIN.ending) -> MatmulPlan:
    """The product with a given tiling, K cut into at most `shares` pieces; no extent is 0."""
    p, steps = problem(a, b), SWIZZLED // a.dtype.itemsize
    k_split = split_length(p.K, shares, steps)
    shares = cdiv(p.K, k_split)
    works = t.tiles(p) * shares
    kernel = SOURCE.kernel(
        "matmul_few_rows", f"a:map b:map {end.tensors} {NUMBERS}",
        ELEMENT=ctype(a.dtype), C_VECTOR=gcd(4, p.N), BLOCK_N=t.n, CONSUMERS=1, STAGES=t.stages, SHARES=shares,
        BLOCKS_PER_SM=t.blocks, **p.macros, **end.macros,
    )  # fmt: skip
    launch = kernel.bind(works, THREADS, p.M, p.N, p.K, k_split, works, shared=t.shared)
    a_tiles = tiles(p, p.left, p.M, t.m if p.left.k_major else steps)
    b_tiles = tiles(p, p.right, p.N, t.n if p.right.k_major else steps)
    return MatmulPlan(launch, p.shape, a_tiles, b_tiles)
