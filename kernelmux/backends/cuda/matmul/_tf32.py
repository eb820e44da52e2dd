"""matmul through TMA and wgmma, on sm_90: of fp32 operands as tf32 without a copy of b where that is row-major."""

from dataclasses import dataclass
from math import gcd

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import Source, Tiles, cdiv, multiprocessors
from kernelmux.backends.cuda.matmul._choice import (
    HOPPER_MEMORY,
    MatmulPlan,
    MatmulProblem,
    Operand,
    Tiling,
    adding,
    choose,
    problem,
    split_length,
)
from kernelmux.backends.cuda.matmul._maps import NUMBERS
from kernelmux.backends.cuda.matmul._padding import padded
from kernelmux.backends.cuda.matmul._wgmma import LINE, k_contiguous
from kernelmux.backends.cuda.matmul._wgmma import wgmma as wgmma_of_any
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "matmul_wgmma_tf32.cu")
STEP = LINE // 4  # of K, and columns of b in a box
READERS = 0.72  # of all multiprocessors, that must read for the full rate of DRAM


@dataclass(frozen=True)
class Tf32Tiling(Tiling):
    """`m` rows of a by `n` columns of b, `height` times 64 for each consumer warpgroup.

    group: tiles side by side that are computed one after the other, before those below them.
    """

    stages: int
    height: int = 1
    group: int = 8

    @property
    def consumers(self) -> int:
        return self.n // (64 * self.height)

    @property
    def threads(self) -> int:
        return 128 * (1 + self.consumers)

    @property
    def shared(self) -> int:
        """Bytes of the stages and of their barriers."""
        return self.stages * ((self.m + self.n) * LINE + 16)

    def microseconds(
        self,
        p: MatmulProblem,
        splits: int,
        multiprocessors: int,
        moved: int | None = None,
        memory: float = HOPPER_MEMORY,
    ) -> float:
        """As of any tiling; few blocks do not draw all that DRAM has to give."""
        blocks = min(self.tiles(p) * splits, self.resident(multiprocessors))
        scarcity = max(1.0, READERS * multiprocessors / blocks)
        return super().microseconds(p, splits, multiprocessors, int(p.bytes * scarcity), memory)


# Rates, and READERS, with which the rule finds the quickest of 16 tilings for 19 products on an H200, or one within 3 %.
TILINGS = (
    Tf32Tiling(256, 128, 1.63e6, 4, group=16),
    Tf32Tiling(160, 256, 1.64e6, 4, height=2),
    Tf32Tiling(192, 128, 1.53e6, 5, group=16),
    Tf32Tiling(128, 128, 1.47e6, 6),
    Tf32Tiling(64, 128, 0.83e6, 8),
    Tf32Tiling(32, 128, 0.62e6, 10),
)


def wgmma(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    """As `_matmul_wgmma.wgmma`, which computes all other products."""
    if not _takes(a, b, epilogue):
        return wgmma_of_any(a, b, precision, epilogue)
    a = k_contiguous(a, 1)
    a = a if problem(layout(a), layout(b)).left.aligned else padded(a, 1)
    return _best_plan(layout(a), layout(b), multiprocessors(a)).run(a, b, PLAIN)


def reads_in_place(b: Operand) -> bool:
    """Whether b is row-major, with lines that TMA can read."""
    return not b.k_major and b.aligned


def _takes(a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue) -> bool:
    if a.dtype != torch.float32 or a.numel() == 0 or b.numel() == 0 or epilogue.ending != PLAIN.ending:
        return False
    p = problem(layout(a), layout(b))
    return p.batch is None and reads_in_place(p.right)


@remembered
def _best_plan(a: Layout, b: Layout, multiprocessors: int) -> MatmulPlan:
    tiling, splits = choose(TILINGS, problem(a, b), multiprocessors)
    return plan(a, b, tiling, splits, multiprocessors)


def plan(a: Layout, b: Layout, t: Tf32Tiling, splits: int, multiprocessors: int) -> MatmulPlan:
    """The product with a given tiling, K cut into at most `splits` pieces; no extent is 0."""
    p = problem(a, b)
    k_split = split_length(p.K, splits, STEP)
    parts = cdiv(p.K, k_split)
    works = t.tiles(p) * parts
    kernel = SOURCE.kernel(
        "matmul_wgmma_tf32", f"a:map b:map c* {NUMBERS}",
        ELEMENT="float", A_K_MAJOR=1, B_K_MAJOR=1, C_VECTOR=gcd(4, p.N), BLOCK_N=t.m, CONSUMERS=t.consumers,
        HEIGHT=t.height, STAGES=t.stages, GROUP_M=t.group,
    )  # fmt: skip
    numbers = p.M, p.N, p.K, k_split, works
    launch = kernel.bind(min(works, t.resident(multiprocessors)), t.threads, *numbers, shared=t.shared)
    a_tiles = Tiles((p.M, p.K), (p.left.ld, 1), (t.m, STEP), swizzle=LINE, tf32=True)
    b_tiles = Tiles((p.K, p.N), (p.right.ld, 1), (STEP, STEP), swizzle=LINE, tf32=True)
    return MatmulPlan(launch, p.shape, a_tiles, b_tiles, parts, adding(parts, p, PLAIN.ending))
