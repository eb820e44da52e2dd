"""matmul through TMA and wgmma, on sm_90."""

from dataclasses import dataclass, replace
from math import gcd

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import Source, cdiv, ctype, multiprocessors
from kernelmux.backends.cuda.matmul import _few_rows as few_rows
from kernelmux.backends.cuda.matmul import _few_rows_lines as few_rows_lines
from kernelmux.backends.cuda.matmul import _shares
from kernelmux.backends.cuda.matmul._choice import (
    HOPPER_MEMORY,
    MatmulPlan,
    MatmulProblem,
    Tiling,
    adding,
    choose,
    operand,
    problem,
    split_length,
)
from kernelmux.backends.cuda.matmul._maps import NUMBERS, SWIZZLED, tiles
from kernelmux.backends.cuda.matmul._padding import padded
from kernelmux.backends.cuda.transpose import transpose_vectorized
from kernelmux.registry.util.batch_strides import Batch, result
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "matmul_wgmma.cu")
MAPS = "products:i32 inner:i32 apart:i32"
LINE = SWIZZLED
# Microseconds that a shared round takes beside its products. H200, us, shared and not: 6144 x 5120 by 5120 x 5120 414.6 and
# 444.5, 3000 x 6144 by 6144 x 6144 302.7 and 325.3, both with 128 x 256.
SHARING = 10.0


@dataclass(frozen=True)
class WgmmaTiling(Tiling):
    """Consumer warpgroups, up to three, of `height` times 64 rows and `n` columns, n = 64, 96, 112, 128, 144, 160, 176,
    192, 208, 224, 240, 256, 288 or 320.

    across, down: blocks of a cluster that lie side by side and fetch their rows of a together, and below one another, with
    columns of b. strips_in_ring: results leave through a stage of the ring. in_turn: even and odd rows of a are two
    products where that lets all begin at multiples of 32 bytes. own_last: the last columns of b that are no whole 64 come
    by a box of their own. blocks: that share a multiprocessor. sharing: blocks may share the tiles of the last round.
    """

    stages: int
    group_m: int = 16
    height: int = 1
    across: int = 1
    down: int = 1
    strips_in_ring: bool = False
    blocks: int = 1
    in_turn: bool = False
    own_last: bool = False
    sharing: bool = True

    @property
    def peers(self) -> int:
        """Blocks of a cluster."""
        return self.across * self.down

    def seen(self, p: MatmulProblem) -> MatmulProblem:
        """The problem with rows in turn, if this tiling takes them so and they lie so."""
        return p.in_turn(self.m) or p if self.in_turn else p

    def tiles(self, p: MatmulProblem) -> int:
        """Of all products; of a cluster some may be empty."""
        p = self.seen(p)
        return self.peers * p.products * cdiv(p.M, self.down * self.m) * cdiv(p.N, self.across * self.n)

    def resident(self, multiprocessors: int) -> int:
        """Blocks that run at one time. A cluster is in one GPC, and an H200 has room for 30 clusters of four."""
        clusters = multiprocessors * self.blocks // self.peers
        return self.peers * max(1, clusters if self.peers < 4 else clusters - 3)

    def left_over(self, p: MatmulProblem, multiprocessors: int) -> tuple[int, int]:
        """Tiles for the last round of all multiprocessors, and how many blocks share each: 1 if they do not."""
        plain = self.sharing and self.peers == 1 and self.blocks == 1 and p.batch is None and self.seen(p) is p
        left = self.tiles(p) % multiprocessors if plain else 0
        return left, _shares.most_shares(left, p.K, multiprocessors)

    def microseconds(
        self,
        p: MatmulProblem,
        splits: int,
        multiprocessors: int,
        moved: int | None = None,
        memory: float = HOPPER_MEMORY,
    ) -> float:
        """As of any tiling, or with the last round shared."""
        plain = super().microseconds(p, splits, multiprocessors, moved, memory)
        _, shares = self.left_over(p, multiprocessors)
        if splits > 1 or shares == 1:
            return plain
        round_of = self.m * self.n * p.K / self.rate
        drain = max(0.5, self.m * self.n / 2**16)
        work = self.tiles(p) // multiprocessors * (drain + round_of) + drain + round_of / shares + SHARING
        return max(work, p.bytes / memory + 0.1 * work)

    def for_shares(self) -> _shares.SharedTiling:
        """The same tile for blocks that share K."""
        return _shares.SharedTiling(self.m, self.n, self.rate, self.stages, self.height, group_m=self.group_m)

    @property
    def consumers(self) -> int:
        return self.m // (64 * self.height)

    @property
    def threads(self) -> int:
        return 128 * (1 + self.consumers)

    def shared(self, out: torch.dtype) -> int:
        """Bytes of the stages, of 16 lines of 128 bytes (or 64) and a skew per consumer warp, of the barriers."""
        width = self.n * out.itemsize
        line = next(n for n in (LINE, LINE // 2, LINE // 4 * 3, LINE // 4) if width % n == 0)
        strips = 0 if self.strips_in_ring else 4 * self.consumers * 16 * (line + 8 * out.itemsize)
        return self.stages * (self.m + cdiv(self.n, 64) * 64) * LINE + strips + 16 * self.stages


# Rates fitted to 1024^3 to 8192^3 in bf16; tf32 runs at half of them, which does not change the choice. Three stages of
# the widest tile and groups of 16 are 1 % before four and 8 from 4096^3 to 16384^3. H200, us, with 128 x 256, 128 x 192 and
# 192 x 192: 3000 x 6144 by 6144 x 6144 302.7, 301.8 and 294.9, 8192^3 1502 and 1484 (128 x 256 and 192 x 192), 8192 x 2880
# by 2880 x 2880 185.5 with 192 x 192, 187.3 with 128 x 240.
TILINGS = (
    WgmmaTiling(128, 256, 3.1e6, 3),
    WgmmaTiling(192, 192, 3.12e6, 4),
    WgmmaTiling(256, 160, 2.95e6, 3, height=2),
    WgmmaTiling(128, 192, 3.04e6, 5),
    WgmmaTiling(128, 128, 2.95e6, 6),
    WgmmaTiling(64, 128, 2.15e6, 8),
)
# Between these, for products of which they fill the last round badly, where columns of b are contiguous: otherwise such a
# tile is no whole boxes. H200, bf16: 8192 x 2880 by 2880 x 2880 takes 185.0 us with 240 columns, 193.7 with 256; 4096 x
# 2880 by 2880 x 5760 183.4, 185.4 with 128 x 128; 6144 x 5120 by a row-major 5120 x 5120 443.4, 439.0 with 256. Of a few
# hundred rows the narrow ones fill one round: 734 x 3776 by 3776 x 2880 29.6 with 144 columns, 35.0 with 192; 500 x 5120 by
# 5120 x 3072 29.7 with 96, 32.6 with 128; 1000 x 6144 by 6144 x 2304 42.8 with 144, 46.4 with 288. Those do not share K:
# 400 x 7168 by 7168 x 2048 43.3 with 144 in pairs, 32.4 with 128.
BETWEEN = (
    WgmmaTiling(128, 240, 2.99e6, 4),
    WgmmaTiling(128, 224, 2.99e6, 4),
    WgmmaTiling(128, 288, 3.03e6, 4, strips_in_ring=True),
    WgmmaTiling(128, 208, 2.92e6, 4, sharing=False),
    WgmmaTiling(128, 176, 2.75e6, 5, sharing=False),
    WgmmaTiling(128, 160, 2.9e6, 5, sharing=False),
    WgmmaTiling(128, 144, 2.79e6, 5, sharing=False),
    WgmmaTiling(128, 112, 2.75e6, 6, sharing=False),
    WgmmaTiling(128, 96, 2.4e6, 6, sharing=False),
)
# Where lines begin at odd multiples of 16 bytes, TMA reads five sectors for four, and all are slower: blocks of a
# cluster read less. A pair of 128 x 320 reads five whole boxes of b, one of 256 x 160 three boxes twice, of which a
# half for nothing. Bf16 on an H200: 1000 x 3000 by 3000 x 5000 takes 48.7 us in pairs of 128 x 320, 51.9 of 256 x 160
# (one run), 53.2 of 256 x 192, 68.2 without pairs, 87.5 in fours, for which it is two rounds; 3000^3 91.0 in fours,
# 96.0 in pairs; 4096 x 4104 by 4104 x 4104 206.9 with 256 x 192, 244.0 with 256 x 160; 2000 x 3000 by 3000 x 4008 77.2
# with 256 x 128, 88.8 in fours of 256 x 160. Even and odd rows of a as two products: 3000^3 83.9 in pairs of 128 x 288
# (92.7 without that), 2000 x 3000 by 3000 x 4008 73.3 in pairs of 128 x 256 (75.9). With other lines clusters gain
# nothing (4096^3: 178.6 us with 128 x 256, 183.3 in pairs of it). Of ten rounds and more 256 x 192 falls behind: 8192 x
# 8200 by 8200 x 8192 takes 1584.8 with it, 1544.1 with 128 x 320, 27269 x 5672 by 5672 x 7001 3555.1 and 3388.2.
ODD_TILINGS = (
    WgmmaTiling(128, 320, 2.88e6, 4, down=2, strips_in_ring=True),
    WgmmaTiling(128, 288, 2.83e6, 4, down=2, strips_in_ring=True, in_turn=True, own_last=True),
    WgmmaTiling(128, 256, 2.9e6, 4, down=2, in_turn=True),
    WgmmaTiling(256, 160, 2.7e6, 4, height=2, across=2, strips_in_ring=True),
    WgmmaTiling(256, 192, 2.91e6, 4, height=2, across=2, strips_in_ring=True),
    WgmmaTiling(256, 160, 2.92e6, 4, height=2, across=2, down=2, strips_in_ring=True),
    WgmmaTiling(256, 128, 2.8e6, 4, height=2, across=2),
    WgmmaTiling(128, 256, 2.4e6, 3, across=2),
    WgmmaTiling(128, 192, 2.2e6, 5, across=2),
    WgmmaTiling(128, 128, 2.0e6, 6, across=2),
    WgmmaTiling(128, 128, 1.8e6, 6),
    WgmmaTiling(64, 128, 1.4e6, 8),
)
# Between these, of 16 bits, where columns of b are contiguous and rows take turns. H200, bf16: 2944 x 14104 by 14104 x 2328
# takes 274.8 us with it, 295.5 with 128 x 256, 326.6 and 331.3 without turns; 2000 x 3000 by 3000 x 4008, which is three
# rounds of it and two of the others, 100.7 and 76.0.
ODD_BETWEEN = (WgmmaTiling(128, 224, 2.74e6, 4, down=2, in_turn=True),)
# Products within one tile: a batch of them fills multiprocessors with several. H200, 1000 of 64^3 in bf16: 12.9 us with two
# blocks on each, 14.0 with one, 14.3 with tiles of 64 x 128.
SMALL_TILINGS = (WgmmaTiling(64, 64, 1.4e6, 4, blocks=2),)


def tilings(p: MatmulProblem, end: EpilogueKind = PLAIN.ending) -> tuple[WgmmaTiling, ...]:
    """Those among which a product chooses. 192 sums to a thread leave no registers for what follows the product.

    H200, us, with an activation, whose argument takes turns too, and without turns: 4000 x 5368 by 5368 x 2880 193.8 and
    212.0 with 128 x 256; 3000^3 104.2 and 100.2 with 128 x 288.
    """
    if max(p.M, p.N) <= 64 and p.dtype.itemsize == 2:
        return SMALL_TILINGS
    if p.line_multiple > 16:
        return TILINGS + BETWEEN if p.dtype.itemsize == 2 and p.right.k_major else TILINGS
    between = p.dtype.itemsize == 2 and p.right.k_major and p.in_turn(128)
    odd = ODD_TILINGS + ODD_BETWEEN if between else ODD_TILINGS
    if end == PLAIN.ending:
        return odd
    return tuple(replace(t, in_turn=t.in_turn and t.n <= 256) for t in odd if t.height * t.n < 2 * 192)


def wgmma(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    if a.numel() == 0 or b.numel() == 0:
        return result(a, b).zero_()
    if a.dtype == torch.float32:
        a, b = k_contiguous(a, 1), k_contiguous(b, 0)
    p = problem(layout(a), layout(b))
    if few_rows_lines.takes(p, layout(b)):
        return few_rows_lines.plan(layout(a), layout(b), multiprocessors(a), epilogue.ending).run(a, b, epilogue)
    copied = not (p.left.aligned and p.right.aligned)
    a, b = a if p.left.aligned else padded(a, 1), b if p.right.aligned else padded(b, 0)
    return _best_plan(layout(a), layout(b), multiprocessors(a), epilogue.ending, copied).run(a, b, epilogue)


def k_contiguous(x: torch.Tensor, k_axis: int) -> torch.Tensor:
    """The operand with K, its axis 0 or 1, contiguous; `x` itself if it is: wgmma transposes 16-bit elements only.

    Two passes over 4096^2 in fp32 take 35 us, and the tf32 product then 330 us instead of the 740 us of mma.sync.
    """
    if operand(layout(x), k_axis).k_major:
        return x
    return turned(x) if k_axis == 0 else turned(x.mT).mT


def turned(x: torch.Tensor) -> torch.Tensor:
    """x [... K, N] with K contiguous: all its rows as one matrix, whose transpose holds those of x side by side."""
    flat = x.flatten(0, -2)
    return transpose_vectorized(flat).view(x.shape[-1], *x.shape[:-1]).movedim(0, -1)


@remembered
def _best_plan(a: Layout, b: Layout, multiprocessors: int, end: EpilogueKind, follows: bool) -> MatmulPlan:
    p = problem(a, b)
    if few_rows.takes(p):
        return few_rows.vectors_plan(a, b, end) or few_rows.plan(a, b, few_rows.tile_for(p, multiprocessors), end)
    tiling, splits = choose(tilings(p, end), p, multiprocessors)
    turned = few_rows.many_rows(p, multiprocessors)
    if turned and turned.microseconds(p) < tiling.microseconds(p, splits, multiprocessors):
        return few_rows.plan(a, b, turned, end)
    return plan(a, b, tiling, splits, multiprocessors, end, follows=follows)


def plan(
    a: Layout, b: Layout, t: WgmmaTiling, splits: int, multiprocessors: int, end: EpilogueKind = PLAIN.ending,
    follows: bool = False,
) -> MatmulPlan:  # fmt: skip
    """The product with a given tiling, K cut into at most `splits` pieces; no extent is 0. follows: it may start before the
    copies of its operands have ended."""
    whole = problem(a, b)
    p = t.seen(whole)
    k_split = split_length(p.K, splits, LINE // a.dtype.itemsize)
    parts = cdiv(p.K, k_split)
    out, ending = (a.dtype, end) if parts == 1 else (torch.float32, PLAIN.ending)
    works = t.tiles(p) * parts
    left, shares = t.left_over(p, multiprocessors) if parts == 1 else (0, 1)
    if shares > 1 and left == works:
        return _shares.plan(a, b, t.for_shares(), shares, end)
    works -= left if shares > 1 else 0
    rest = _shares.launch(p, t.for_shares(), shares, end, works) if shares > 1 else None
    own_last = t.own_last and not p.right.k_major
    odd = p is not whole and whole.M % 2 == 1
    of_a = p.without_first if odd else p
    maps, batch = (MAPS, (p.products, of_a.batch.inner, _apart(p.batch))) if p.batch and of_a.batch else ("", ())
    kernel = SOURCE.kernel(
        "matmul_wgmma", f"a:map b:map {'last:map ' * own_last}{ending.tensors} {NUMBERS} {maps}",
        ELEMENT=ctype(a.dtype), OUTPUT=ctype(out),
        C_VECTOR=gcd(16 // out.itemsize, p.N), BLOCK_N=t.n, CONSUMERS=t.consumers, HEIGHT=t.height, STAGES=t.stages,
        GROUP_M=t.group_m, **({"ACROSS": t.across, "DOWN": t.down} if t.peers > 1 else {}),
        **({"STRIPS_IN_RING": 1} if t.strips_in_ring else {}),
        **({"OWN_LAST": 1} if own_last else {}), **({} if p is whole else {"IN_TURN": 1}),
        **({"ODD_ROWS": 1} if odd else {}),
        **({"B_ONCE": 1} if p.M <= t.m and t.down == 1 and not p.batch else {}),
        **({"LEAVES_REST": 1} if rest else {}),
        **({"FOLLOWS": 1} if follows else {}),
        **p.macros, **ending.macros,
    )  # fmt: skip
    numbers = p.M, p.N, p.K, k_split, works, *batch
    launch = kernel.bind(
        min(works, t.resident(multiprocessors)), t.threads, *numbers, shared=t.shared(out), follows=follows
    )  # fmt: skip
    steps = LINE // a.dtype.itemsize
    a_tiles = tiles(of_a, p.left, of_a.M, t.m // t.across if p.left.k_major else steps)
    b_tiles = tiles(p, p.right, p.N, (t.n if p.right.k_major else steps) // t.down)
    last = tiles(p, p.right, p.N, steps // t.down, t.n % 64) if own_last else None
    return MatmulPlan(launch, p.shape, a_tiles, b_tiles, parts, adding(parts, whole, end), last, rest)


def _apart(batch: Batch) -> int:
    """Bit by bit, whether there are several matrices of a along the outer and the inner axis, and then of b."""
    return sum(1 << i for i, stride in enumerate((*batch.a, *batch.b)) if stride)
