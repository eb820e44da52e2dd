"""Products of few tiles through TMA and wgmma, on sm_90: blocks of a cluster share K, and add their sums among themselves.

Few rows take the time of reading b, for which every multiprocessor has to ask. Of other products, the tiles that whole rounds
of all multiprocessors leave over take a round of their own, in which most have nothing to do: shared, they are done sooner.
"""

from dataclasses import dataclass
from math import gcd

from kernelmux.backends.cuda._families.epilogue import PLAIN, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype
from kernelmux.backends.cuda.matmul._choice import MatmulPlan, MatmulProblem, Tiling, problem, split_length
from kernelmux.backends.cuda.matmul._maps import NUMBERS, SWIZZLED, tiles

SOURCE = Source(__file__, "matmul_shares.cu")
SHARES = (8, 4, 2)  # blocks of a cluster; six of them find no room often enough
FEWEST, MOST = 0.9, 1.5  # blocks to a multiprocessor
TILES = 0.25  # of one share to a multiprocessor: of more, those of one piece read as fast
# Clusters of so many blocks, one to a multiprocessor, for which an H200 has room at one time, out of 132.
ROOM = {2: 66, 3: 42, 4: 30, 6: 18, 8: 14}


@dataclass(frozen=True)
class SharedTiling(Tiling):
    """Consumer warpgroups of `height` times 64 rows and `n` columns; blocks: that share a multiprocessor."""

    stages: int
    height: int = 1
    blocks: int = 1
    group_m: int = 16

    @property
    def consumers(self) -> int:
        return self.m // (64 * self.height)

    @property
    def shared(self) -> int:
        """Bytes of the stages and of their barriers."""
        return self.stages * ((self.m + cdiv(self.n, 64) * 64) * SWIZZLED + 16)

    def holding_sums(self) -> "SharedTiling":
        """With stages enough for the sums, which take their place."""
        needed = cdiv(self.m * (self.n + 8) * 4, (self.m + self.n) * SWIZZLED)
        return SharedTiling(self.m, self.n, self.rate, max(self.stages, needed), self.height, self.blocks, self.group_m)

    def shares(self, p: MatmulProblem, multiprocessors: int) -> int:
        """Into how many pieces K is best cut, each of 256 or more."""
        tiles = self.tiles(p)
        return next((n for n in SHARES if n * tiles <= MOST * multiprocessors and n * 256 <= p.K), 1)


TILINGS = SharedTiling(64, 128, 2.15e6, 4, blocks=2), SharedTiling(64, 64, 1.4e6, 6, blocks=2)


def takes(p: MatmulProblem) -> bool:
    """Whether a product has few enough rows: the time is that of reading b, once."""
    return p.batch is None and p.M <= 64 and p.dtype.itemsize == 2


def choice(p: MatmulProblem, multiprocessors: int) -> tuple[SharedTiling, int] | None:
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


def most_shares(tiles: int, K: int, multiprocessors: int) -> int:
    """Of the K of each of so many tiles, that fill one round and are 256 or longer; 1 if there is no use for more."""
    fit = (n for n, room in ROOM.items() if tiles * 132 <= room * multiprocessors and n * 256 <= K)
    return max(fit, default=1) if tiles else 1


def plan(a: Layout, b: Layout, t: SharedTiling, shares: int, end: EpilogueKind = PLAIN.ending) -> MatmulPlan:
    """The product with a given tiling, K cut into at most `shares` pieces; no extent is 0."""
    p, steps = problem(a, b), SWIZZLED // a.dtype.itemsize
    a_tiles = tiles(p, p.left, p.M, t.m if p.left.k_major else steps)
    b_tiles = tiles(p, p.right, p.N, t.n if p.right.k_major else steps)
    return MatmulPlan(launch(p, t, shares, end), p.shape, a_tiles, b_tiles)


def launch(p: MatmulProblem, t: SharedTiling, shares: int, end: EpilogueKind, first: int = 0) -> BoundLaunch:
    """Of the tiles from `first` on. If there are tiles before, they are those of the launch before, which lets this one begin
    ahead of its end."""
    k_split = split_length(p.K, shares, SWIZZLED // p.dtype.itemsize)
    shares, t = cdiv(p.K, k_split), t.holding_sums()
    kernel = SOURCE.kernel(
        "matmul_shares", f"a:map b:map {end.tensors} {NUMBERS} first:i32",
        ELEMENT=ctype(p.dtype), C_VECTOR=gcd(4, p.N), BLOCK_N=t.n, CONSUMERS=t.consumers, HEIGHT=t.height, STAGES=t.stages,
        GROUP_M=t.group_m, SHARES=shares, BLOCKS_PER_SM=t.blocks, **({"B_ONCE": 1} if p.M <= t.m else {}),
        **({"IS_REST": 1} if first else {}), **p.macros, **end.macros,
    )  # fmt: skip
    count = t.tiles(p)
    numbers = p.M, p.N, p.K, k_split, count, first
    return kernel.bind((count - first) * shares, 128 * (1 + t.consumers), *numbers, shared=t.shared, follows=first > 0)
