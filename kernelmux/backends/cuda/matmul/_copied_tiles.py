"""Few rows of fp32 on the FP32 pipes: the time is that of reading b, whose columns are contiguous, behind cp.async."""

from dataclasses import dataclass

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import Source, card, cdiv
from kernelmux.backends.cuda.matmul import _register_tiled
from kernelmux.backends.cuda.matmul._choice import MatmulProblem, Tiling, problem, split_length
from kernelmux.backends.cuda.matmul._register_tiled import RegisterPlan
from kernelmux.registry.util.cards import Card, remembered

SOURCE = Source(__file__, "matmul_copied_tiles.cu")
STEP = 32  # of K


@dataclass(frozen=True)
class CopiedTiling(Tiling):
    """rows: of a thread, which has 4 columns; lanes_m: of a warp, down the rows, of which a tile has one warp's."""

    rows: int
    lanes_m: int
    stages: int

    @property
    def warps(self) -> int:
        return self.n * self.lanes_m // 128


# H200, us, by these tiles and by those of register_tiled, with columns of b contiguous: 8 x 8192 by 8192 x 8192 83.6 and
# 126, 1 x 4096 by 4096 x 4096 33.4 and 46.6.
EIGHT, SIXTEEN = CopiedTiling(8, 256, 1.0, 4, 2, 2), CopiedTiling(16, 128, 1.0, 4, 4, 4)
BLOCKS, FEWEST = 3, 128  # on a multiprocessor; of K, to a block


def register_tiled(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    plan = _few_rows_plan(layout(a), layout(b), card(a), epilogue.ending)
    return plan.run(a, b, epilogue) if plan else _register_tiled.register_tiled(a, b, precision, epilogue)


@remembered
def _few_rows_plan(a: Layout, b: Layout, card: Card, end: EpilogueKind) -> RegisterPlan | None:
    """The plan of few rows on sm_90; None of other products."""
    p = problem(a, b)
    few = p.M <= SIXTEEN.m and p.M * p.N * p.K and p.products == 1
    here = p.dtype == torch.float32 and card.capability == (9, 0)
    if not (few and here and p.left.k_major and p.right.k_major and p.right.bytes == 16):
        return None
    t = EIGHT if p.M <= EIGHT.m else SIXTEEN
    return plan(p, t, max(min(card.processors * BLOCKS // t.tiles(p), p.K // FEWEST), 1), end)


def plan(p: MatmulProblem, t: CopiedTiling, shares: int, end: EpilogueKind = PLAIN.ending) -> RegisterPlan:
    """The product with a given tiling, K cut into at most so many pieces."""
    share, tiles, threads = split_length(p.K, shares, STEP), t.tiles(p), 32 * t.warps
    shares = cdiv(p.K, share)
    options = dict(
        ELEMENT="float", A_VECTOR=min(4, p.left.bytes // 4), B_VECTOR=min(4, p.right.bytes // 4), THREAD_M=t.rows,
        LANES_M=t.lanes_m, WARPS=t.warps, STAGES=t.stages, BLOCKS_PER_SM=BLOCKS, SPLIT=int(shares > 1),
        **p.macros, **end.macros,
    )  # fmt: skip
    numbers = "M:i32 N:i32 K:i32 lda:i64 ldb:i64 shares:i32 k_share:i32"
    kernel = SOURCE.kernel("matmul_copied_tiles", f"a* b* parts* {end.tensors} {numbers}", **options)
    values = p.M, p.N, p.K, p.left.ld, p.right.ld, shares, share
    launch = kernel.bind(tiles * shares, threads, *values, shared=4 * t.stages * (t.m + t.n) * STEP)
    if shares == 1:
        return RegisterPlan(launch, p.shape, 0, None)
    adding = SOURCE.kernel("matmul_copied_tiles_sum", f"parts* {end.tensors} M:i32 N:i32 shares:i32", **options)
    add = adding.bind(tiles * t.rows, threads, p.M, p.N, shares)
    return RegisterPlan(launch, p.shape, shares * tiles * t.m * t.n, add)
