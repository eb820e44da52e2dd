"""matmul on the FP32 pipes, 8 x 16 or 12 x 8 sums to a thread, with the tile that fills the multiprocessors best."""

from dataclasses import dataclass
from math import gcd

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import Source, cdiv, multiprocessors
from kernelmux.backends.cuda.matmul._choice import (
    MatmulPlan,
    MatmulProblem,
    Tiling,
    problem,
    simple_kernel,
    simple_plan,
)
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "matmul_register_tiled.cu")
WARPS = 4


@dataclass(frozen=True)
class RegisterTiling(Tiling):
    """rows, columns: of a thread. A warp has 8 times as many rows and 4 times as many columns."""

    rows: int
    columns: int
    blocks: int

    @property
    def warps_m(self) -> int:
        return self.m // (8 * self.rows)

    def time(self, p: MatmulProblem, multiprocessors: int) -> float:
        """Microseconds: those of the multiprocessor that has most tiles."""
        return cdiv(self.tiles(p), multiprocessors) * self.m * self.n * p.K / self.rate


# H200, us, with the first and the second: 4096^3 2888 and 3081, 3000^3 1582 and 1228, 2048 x 2880 by 2880 x 1500 523 and
# 427.
TILINGS = (
    RegisterTiling(128, 128, 1.81e5, 8, 16, blocks=2),
    RegisterTiling(96, 128, 1.81e5, 12, 8, blocks=3),
)


def register_tiled(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    return _best_plan(layout(a), layout(b), multiprocessors(a), epilogue.ending).run(a, b, epilogue)


@remembered
def _best_plan(a: Layout, b: Layout, multiprocessors: int, end: EpilogueKind) -> MatmulPlan:
    p = problem(a, b)
    return plan(a, b, choice(p, multiprocessors), end)


def choice(p: MatmulProblem, multiprocessors: int) -> RegisterTiling:
    """The quickest tiling; 96 rows are a whole number of loads for all threads only if K is contiguous."""
    fit = TILINGS if p.left.k_major else TILINGS[:1]
    return min(fit, key=lambda t: t.time(p, multiprocessors))


def plan(a: Layout, b: Layout, t: RegisterTiling, end: EpilogueKind = PLAIN.ending) -> MatmulPlan:
    """The product with a given tiling."""
    p, size = problem(a, b), a.dtype.itemsize
    kernel = simple_kernel(
        SOURCE, "matmul_register_tiled", p, end, C_VECTOR=gcd(4, p.N),
        A_VECTOR=min(4, p.left.bytes // size), B_VECTOR=min(4, p.right.bytes // size),
        THREAD_M=t.rows, THREAD_N=t.columns, WARPS_M=t.warps_m, WARPS_N=WARPS // t.warps_m, BLOCKS_PER_SM=t.blocks,
    )  # fmt: skip
    return simple_plan(kernel, t.tiles(p), 32 * WARPS, p)
