"""Products of few tiles through TMA and wgmma, on sm_90: blocks of a cluster share K, and add their sums among themselves.

The tiles that whole rounds of all multiprocessors leave over take a round of their own, in which most have nothing to do:
shared, they are done sooner. So are products that have no more tiles than that.
"""

from dataclasses import dataclass
from math import gcd

from kernelmux.backends.cuda._families.epilogue import PLAIN, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype
from kernelmux.backends.cuda.matmul._choice import MatmulPlan, MatmulProblem, Tiling, problem, split_length
from kernelmux.backends.cuda.matmul._maps import NUMBERS, SWIZZLED, tiles

SOURCE = Source(__file__, "matmul_shares.cu")
# Clusters of so many blocks, one to a multiprocessor, for which an H200 has room at one time, out of 132.
ROOM = {2: 66, 3: 36, 4: 30, 8: 14}


@dataclass(frozen=True)
class SharedTiling(Tiling):
    """Consumer warpgroups of `height` times 64 rows and `n` columns."""

    stages: int
    height: int = 1
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
        return SharedTiling(self.m, self.n, self.rate, max(self.stages, needed), self.height, self.group_m)


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
    """Of the tiles from `first` on. Tiles before these are those of the launch before, which lets this one begin early."""
    k_split = split_length(p.K, shares, SWIZZLED // p.dtype.itemsize)
    shares, t = cdiv(p.K, k_split), t.holding_sums()
    kernel = SOURCE.kernel(
        "matmul_shares", f"a:map b:map {end.tensors} {NUMBERS} first:i32",
        ELEMENT=ctype(p.dtype), C_VECTOR=gcd(4, p.N), BLOCK_N=t.n, CONSUMERS=t.consumers, HEIGHT=t.height, STAGES=t.stages,
        GROUP_M=t.group_m, SHARES=shares, **({"IS_REST": 1} if first else {}), **p.macros, **end.macros,
    )  # fmt: skip
    count = t.tiles(p)
    numbers = p.M, p.N, p.K, k_split, count, first
    return kernel.bind((count - first) * shares, 128 * (1 + t.consumers), *numbers, shared=t.shared, follows=first > 0)
