"""Products of few rows in 16 bits whose b has K contiguous in lines that begin anywhere, which the copy engine cannot read.

Lines n, n + 8, n + 16, ... (fewer apart where they are less odd) begin at one distance from a multiple of 16 bytes, a turn.
"""

from dataclasses import dataclass
from math import gcd

import torch

from kernelmux.backends.cuda._families.epilogue import Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, cdiv, ctype
from kernelmux.backends.cuda.matmul._choice import MatmulProblem, operand, problem, split_length
from kernelmux.backends.cuda.matmul._few_rows import MOST_ROWS, NEARLY_HALF, TurnedTile, rows_for, shares_for
from kernelmux.backends.cuda.matmul._maps import NUMBERS, SWIZZLED
from kernelmux.backends.cuda.matmul._shares import SOURCE
from kernelmux.registry.util.cards import remembered

TURNS = Source(__file__, "matmul_turns.cu")
THREADS = 256
VECTOR, STEP = 8, 64  # elements of 16 bytes, and of a step


@dataclass(frozen=True)
class FewRowsLinesPlan:
    """The copies of a, of this shape; the product, and how it reads those copies and the lines of b: of the turns that have
    as many as any, and of the others."""

    copies: BoundLaunch
    copied: tuple[int, ...]
    launch: BoundLaunch
    shape: tuple[int, ...]
    x: Tiles
    b: Tiles
    fewer: Tiles

    def run(self, a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
        x, c = a.new_empty(self.copied), a.new_empty(self.shape)
        self.copies(x, a)
        self.launch(self.x.of(x), self.b.of(b), self.fewer.of(b), a, b, c, *epilogue.tensors)
        return c


def takes(p: MatmulProblem, b: Layout) -> bool:
    """Whether it is such a product, of lines that do not overlap, the first of which begins at a multiple of 16 bytes."""
    few = p.batch is None and 0 < p.M <= MOST_ROWS and p.dtype.itemsize == 2 and p.left.k_major
    return few and any_lines(b, 0)


def any_lines(b: Layout, k_axis: int) -> bool:
    """Whether b is one matrix of such lines, long enough."""
    if len(b.shape) != 2 or b.offset or not (found := operand(b, k_axis)).k_major or found.aligned:
        return False
    return found.ld >= b.shape[k_axis] >= 4 * STEP and b.shape[1 - k_axis] >= STEP


@remembered
def plan(
    a: Layout, b: Layout, multiprocessors: int, end: EpilogueKind, t: TurnedTile | None = None
) -> FewRowsLinesPlan:
    """The product, with a given tile or the best."""
    p = problem(a, b)
    turns = VECTOR // gcd(VECTOR, p.right.ld)
    t = t or _tile_for(p, turns, multiprocessors)
    # Every turn has as many shares, the last of which has a whole step.
    shares = next(
        n for n in range(t.shares, 0, -1) if n == 1 or p.K - VECTOR - (n - 1) * split_length(p.K, n, STEP) > 2 * STEP
    )
    k_split, pitch = split_length(p.K, shares, STEP), cdiv(p.K, STEP) * STEP
    works = turns * cdiv(cdiv(p.N, turns), t.columns)
    stages = max(t.stages, cdiv(t.rows * (t.columns + 4) * 4, t.stage(k_major=True)))
    kernel = SOURCE.kernel(
        "matmul_shares", f"a:map b:map fewer:map x* y* {end.tensors} {NUMBERS} first:i32 a_line:i64 b_line:i64",
        ELEMENT=ctype(a.dtype), A_K_MAJOR=1, B_K_MAJOR=1, BLOCK_N=t.rows, CONSUMERS=1, HEIGHT=t.columns // 64,
        STAGES=stages, SHARES=shares,
        BLOCKS_PER_SM=t.blocks, TURNED=1, TURNS=turns, **end.macros,
    )  # fmt: skip
    lines = p.left.ld, p.right.ld
    launch = kernel.bind(
        works * shares, THREADS, p.N, p.M, p.K, k_split, works, 0, *lines,
        shared=stages * (t.stage(k_major=True) + 16), follows=True,
    )  # fmt: skip
    copies = TURNS.kernel("matmul_turns", "x* a* K:i32 pitch:i32 a_line:i64 b_line:i64", ELEMENT=ctype(a.dtype))
    last = (p.N - 1) % turns  # turn of the last line
    return FewRowsLinesPlan(
        copies.bind((cdiv(pitch, THREADS), p.M, turns), THREADS, p.K, pitch, *lines), (turns, p.M, pitch), launch, p.shape,
        Tiles((turns * p.M, pitch), (pitch, 1), (t.rows, STEP), swizzle=SWIZZLED),
        _lines(p, turns, t.columns, cdiv(p.N, turns), last), _lines(p, turns, t.columns, p.N // turns, turns - 1),
    )  # fmt: skip


def _tile_for(p: MatmulProblem, turns: int, multiprocessors: int) -> TurnedTile:
    """H200, us: 17 x 4097 by 4097 x 4097 24.5 in tiles of 64 columns, 26.0 in pairs of 128, 5 x 6170 by 6170 x 4032 25.5 in
    tiles of 64 columns, 28.3 in pairs of them."""
    shares = shares_for(turns * cdiv(cdiv(p.N, turns), 64), p.K, multiprocessors, NEARLY_HALF)
    stages = (111 << 10) // (TurnedTile(rows_for(p), 64, 2, shares, 2).stage(k_major=True) + 16)
    return TurnedTile(rows_for(p), 64, stages, shares, 2)


def _lines(p: MatmulProblem, turns: int, columns: int, rows: int, last: int) -> Tiles:
    """So many rows, each of the lines of b of all turns up to the last one."""
    return Tiles((rows, last * p.right.ld + p.K), (turns * p.right.ld, 1), (columns, STEP), swizzle=SWIZZLED)
