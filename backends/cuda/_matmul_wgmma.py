"""matmul through TMA and wgmma: sm_90, operands whose lines start at multiples of 16 bytes."""

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import torch

from kernelmux.backends.cuda._epilogue import PLAIN, Ending, Epilogue
from kernelmux.backends.cuda._layout import Layout, layout
from kernelmux.backends.cuda._matmul import Operand, Plan, Tiling, adding, choose, majors, operand, split_length
from kernelmux.backends.cuda._runtime import Source, Tiles, cdiv, ctype, multiprocessors
from kernelmux.backends.cuda.transpose import transpose_vectorized

SOURCE = Source(__file__, "matmul_wgmma.cu")
NUMBERS = "M:i32 N:i32 K:i32 k_split:i32 works:i32"
LINE = 128  # bytes along the contiguous index, the widest swizzle


@dataclass(frozen=True)
class WgmmaTiling(Tiling):
    """`m` / 64 consumer warpgroups of 64 x `n`, n = 128, 192 or 256."""

    stages: int
    group_m: int = 16

    @property
    def consumers(self) -> int:
        return self.m // 64

    @property
    def threads(self) -> int:
        return 128 * (1 + self.consumers)

    def shared(self, out: torch.dtype) -> int:
        """Bytes of the stages, of 16 lines of 128 bytes and a skew per consumer warp, of the barriers."""
        strips = 4 * self.consumers * 16 * (LINE + 8 * out.itemsize)
        return self.stages * (self.m + self.n) * LINE + strips + 16 * self.stages


# Rates fitted to 1024^3 to 8192^3 in bf16; tf32 runs at half of them, which does not change the choice. Three stages of
# the widest tile and groups of 16 are 1 % before four and 8 from 4096^3 to 16384^3.
TILINGS = (
    WgmmaTiling(128, 256, 3.05e6, 3),
    WgmmaTiling(128, 192, 3.0e6, 5),
    WgmmaTiling(128, 128, 2.95e6, 6),
    WgmmaTiling(64, 128, 2.15e6, 8),
)


def wgmma(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    if a.numel() == 0 or b.numel() == 0:
        return a.new_zeros(a.shape[0], b.shape[1])
    if a.dtype == torch.float32:
        a, b = k_contiguous(a, 1), k_contiguous(b, 0)
    return _best_plan(layout(a), layout(b), multiprocessors(a), epilogue.ending).run(a, b, epilogue)


def k_contiguous(x: torch.Tensor, k_axis: int) -> torch.Tensor:
    """The operand with K contiguous, `x` itself if it is: wgmma transposes 16-bit elements only.

    Two passes over 4096^2 in fp32 take 35 us, and the tf32 product then 330 us instead of the 740 us of mma.sync.
    """
    if operand(layout(x), k_axis).k_major:
        return x
    return transpose_vectorized(x).t() if k_axis == 0 else transpose_vectorized(x.t())


@lru_cache(maxsize=4096)
def _best_plan(a: Layout, b: Layout, multiprocessors: int, end: Ending) -> Plan:
    tiling, splits = choose(TILINGS, a.shape[0], b.shape[1], a.shape[1], multiprocessors)
    return plan(a, b, tiling, splits, multiprocessors, end)


def plan(a: Layout, b: Layout, t: WgmmaTiling, splits: int, multiprocessors: int, end: Ending = PLAIN.ending) -> Plan:
    """The product with a given tiling, K cut into at most `splits` pieces; no extent is 0."""
    (M, K), N = a.shape, b.shape[1]
    x, y = operand(a, 1), operand(b, 0)
    k_split = split_length(K, splits, LINE // a.dtype.itemsize)
    parts = cdiv(K, k_split)
    out, ending = (a.dtype, end) if parts == 1 else (torch.float32, PLAIN.ending)
    works = t.tiles(M, N) * parts
    kernel = SOURCE.kernel(
        "matmul_wgmma", f"a:map b:map {ending.tensors} {NUMBERS}", ELEMENT=ctype(a.dtype), OUTPUT=ctype(out),
        C_VECTOR=gcd(16 // out.itemsize, N), BLOCK_N=t.n, CONSUMERS=t.consumers, STAGES=t.stages, GROUP_M=t.group_m,
        **majors(x, y), **ending.macros,
    )  # fmt: skip
    launch = kernel.bind(min(works, multiprocessors), t.threads, M, N, K, k_split, works, shared=t.shared(out))
    a_tiles, b_tiles = _tiles(x, (M, K), t.m, a.dtype), _tiles(y, (N, K), t.n, a.dtype)
    return Plan(launch, (M, N), a_tiles, b_tiles, parts, adding(parts, (M, N), a.dtype, end))


def _tiles(x: Operand, shape: tuple[int, int], extent: int, dtype: torch.dtype) -> Tiles:
    """[M or N, K] as lines along the contiguous index: boxes of `extent` lines if that is K, else of a stage's K."""
    per_line = LINE // dtype.itemsize
    lines, outer = (shape, extent) if x.k_major else (shape[::-1], per_line)
    return Tiles(lines, (x.ld, 1), (outer, per_line), swizzle=LINE, tf32=dtype == torch.float32)
