"""matmul through mma.sync: on every card whose tensor cores take the dtype, whatever the alignment, and fp32 as tf32."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.occupancy import fits
from kernelmux.backends.cuda._launch.runtime import Source, card, cdiv, ctype
from kernelmux.backends.cuda.matmul._choice import (
    MatmulPlan,
    Operand,
    Tiling,
    adding,
    choose,
    memory_of,
    problem,
    split_length,
)
from kernelmux.registry.util.batch_strides import result
from kernelmux.registry.util.cards import Card, remembered

SOURCE = Source(__file__, "matmul_tensor_cores.cu")
NUMBERS = "M:i32 N:i32 K:i32 lda:i64 ldb:i64 k_split:i32"


@dataclass(frozen=True)
class MmaTiling(Tiling):
    """`k_bytes` of K per stage, in bytes to serve every dtype; `warps_m` x `warps_n` warps share the tile."""

    k_bytes: int
    warps_m: int
    warps_n: int
    stages: int
    blocks: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    def shared(self, out: torch.dtype, shifted: Sequence[tuple[int, int]] = ()) -> int:
        """Bytes of the stages, which in the end hold a strip of c per warp. shifted: of each operand that is, the lines of
        its tile and their bytes."""
        strips = self.warps_m * self.warps_n * 16 * (self.n // self.warps_n + 8) * out.itemsize
        stages = self.stages * (self.m + self.n) * self.k_bytes
        extra = sum(self.stages * 16 * lines + lines * length for lines, length in shifted)
        return max(stages + extra, strips)

    def lines(self, x: Operand, extent: int) -> tuple[int, int]:
        """Of the tile of 16-bit elements of an operand: their number and bytes."""
        return (extent, self.k_bytes) if x.k_major else (self.k_bytes // 2, 2 * extent)

    def fits(self, card: Card) -> bool:
        """Whether the card holds the blocks that are to share a multiprocessor, and has a use for the stages."""
        useful = (self.stages == 2) == (card.capability < (8, 0))
        return useful and fits(card, self.shared(torch.float32), self.threads, self.blocks)


# bf16 4096^3 on an H200: 492 TFLOP/s with the first, 462 with the second, 426 with 64 bytes of K per stage.
TILINGS = (
    MmaTiling(128, 256, 1.97e6, 128, 2, 4, 3),
    MmaTiling(128, 128, 1.86e6, 128, 2, 2, 3, blocks=2),
    MmaTiling(64, 64, 1.3e6, 128, 2, 2, 4),
    MmaTiling(16, 128, 0.49e6, 128, 1, 4, 4),  # the M of a decode step
)
# For cards without room for all of these: 164 KB of an A100, 100 KB of sm_86, sm_89, sm_120. Two stages are for the 64 KB
# of sm_75, where copies are not asynchronous and blocks wait in turn. Rates beside those above, not measured.
SMALL_TILINGS = (
    MmaTiling(128, 256, 1.8e6, 64, 2, 4, 4),
    MmaTiling(128, 128, 1.75e6, 64, 2, 2, 4, blocks=2),
    MmaTiling(128, 128, 1.7e6, 64, 2, 2, 3, blocks=2),
    MmaTiling(64, 64, 1.3e6, 128, 2, 2, 3, blocks=2),
    MmaTiling(128, 128, 1.6e6, 64, 2, 2, 2, blocks=2),
    MmaTiling(64, 64, 1.2e6, 64, 2, 2, 2, blocks=3),
    MmaTiling(16, 128, 0.49e6, 128, 1, 4, 2),
)
# Of lines that begin at odd multiples of 2 bytes every step waits for memory: more threads wait for more of it. H200, bf16:
# 64 products of 197 x 64 by 64 x 197 take 12.4 us, 14.0 with 64 x 64 and four warps.
OF_HALVES = (
    MmaTiling(128, 128, 1.86e6, 128, 2, 4, 2, blocks=2),
    MmaTiling(64, 128, 1.5e6, 128, 2, 4, 3),
    MmaTiling(64, 64, 1.3e6, 128, 2, 4, 3),
)
# flop/s of a multiprocessor that mma.sync can reach on an H200, on which the rates were fitted: 0.63 of wgmma's peak.
REACHED = 0.63 * 989.4e12 / 132
FORMATS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "tf32"}


@remembered
def tilings(card: Card, dtype: torch.dtype) -> tuple[MmaTiling, ...]:
    """Those that fit, at the rates of the card: fitted on sm_90, elsewhere in proportion to its tensor cores.

    None is taken to be quicker by mma.sync than an H200: the peak of sm_100 is that of other instructions.
    """
    room = TILINGS if all(t.fits(card) for t in TILINGS) else tuple(t for t in TILINGS + SMALL_TILINGS if t.fits(card))
    if card.capability == (9, 0):
        return room
    speed = min(1.0, card.rates[FORMATS[dtype]] / card.processors / REACHED)
    return tuple(replace(t, rate=t.rate * speed) for t in room)


def tensor_cores(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    if a.shape[-1] == 0:
        return result(a, b).zero_()
    return _best_plan(layout(a), layout(b), card(a), epilogue.ending).run(a, b, epilogue)


@remembered
def _best_plan(a: Layout, b: Layout, card: Card, end: EpilogueKind) -> MatmulPlan:
    below = 4 if card.capability == (9, 0) else 0
    return plan(a, b, *choice(a, b, card), end, below)


def choice(a: Layout, b: Layout, card: Card) -> tuple[MmaTiling, int]:
    """The tiling and the number of splits of K on a card."""
    p = problem(a, b)
    by_halves = min(p.left.bytes, p.right.bytes) == 2 and p.M > 16
    room = OF_HALVES if by_halves and card.capability == (9, 0) else tilings(card, a.dtype)
    return choose(room, p, card.processors, memory_of(card))


def plan(
    a: Layout, b: Layout, t: MmaTiling, splits: int, end: EpilogueKind = PLAIN.ending, below: int = 0
) -> MatmulPlan:
    """The product with a given tiling, K (at least 1) cut into at most `splits` pieces. Operands whose lines begin at
    multiples of fewer than `below` bytes are shifted in shared memory."""
    p, block_k = problem(a, b), t.k_bytes // a.dtype.itemsize
    k_split = split_length(p.K, splits, block_k)
    parts = cdiv(p.K, k_split)
    out, ending = (a.dtype, end) if parts == 1 else (torch.float32, PLAIN.ending)
    signature = f"a* b* {ending.tensors} {NUMBERS} {p.batch_signature}"
    sides = ("A", a.offset, p.left, t.m), ("B", b.offset, p.right, t.n)
    below = below if a.dtype.itemsize == 2 else 0
    shifted = {name: t.lines(x, extent) for name, offset, x, extent in sides if x.bytes < below and offset % 16 == 0}
    kernel = SOURCE.kernel(
        "matmul_tensor_cores", signature, **{f"{name}_SHIFTED": 1 for name in shifted},
        ELEMENT=ctype(a.dtype), OUTPUT=ctype(out), C_VECTOR=gcd(16 // out.itemsize, p.N),
        A_COPY=p.left.bytes, B_COPY=p.right.bytes, BLOCK_M=t.m, BLOCK_N=t.n, BLOCK_K=block_k,
        WARPS_M=t.warps_m, WARPS_N=t.warps_n, STAGES=t.stages, BLOCKS_PER_SM=t.blocks, **p.macros, **ending.macros,
    )  # fmt: skip
    numbers = p.M, p.N, p.K, p.left.ld, p.right.ld, k_split, *p.batch_numbers
    launch = kernel.bind((t.tiles(p), parts), t.threads, *numbers, shared=t.shared(out, [*shifted.values()]))
    return MatmulPlan(launch, p.shape, parts=parts, sum_parts=adding(parts, p, end))
