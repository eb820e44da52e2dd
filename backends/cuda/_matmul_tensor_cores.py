"""matmul through mma.sync: runs from sm_80 on, whatever the alignment, and fp32 as tf32."""

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import torch

from kernelmux.backends.cuda._matmul import (
    Launch,
    Operand,
    Tiling,
    choose,
    majors,
    operand,
    parts,
    split_length,
    sum_parts,
)
from kernelmux.backends.cuda._runtime import Source, cdiv, ctype, multiprocessors

SOURCE = Source(__file__, "matmul_tensor_cores.cu")
SIGNATURE = "a* b* c* M:i32 N:i32 K:i32 lda:i64 ldb:i64 k_split:i32"


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

    def shared(self, out: torch.dtype) -> int:
        """Bytes of the stages, which in the end hold a strip of c per warp."""
        strips = self.warps_m * self.warps_n * 16 * (self.n // self.warps_n + 8) * out.itemsize
        return max(self.stages * (self.m + self.n) * self.k_bytes, strips)


TILINGS = (
    MmaTiling(128, 256, 1.6e6, 128, 2, 4, 3),
    MmaTiling(128, 128, 1.3e6, 64, 2, 4, 4),
    MmaTiling(64, 64, 0.9e6, 128, 2, 2, 4),
    MmaTiling(16, 128, 0.3e6, 128, 1, 4, 4),  # the M of a decode step
)


def tensor_cores(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    (M, K), N = a.shape, b.shape[1]
    return multiply(a, b, *choose(TILINGS, M, N, K, multiprocessors(a))) if K else a.new_zeros(M, N)


def multiply(a: torch.Tensor, b: torch.Tensor, tiling: MmaTiling, splits: int) -> torch.Tensor:
    """The product with a given tiling, K (at least 1) cut into at most `splits` pieces."""
    (M, K), N = a.shape, b.shape[1]
    launch = _launch(tiling, splits, a.dtype, M, N, K, operand(a, 1), operand(b, 0))
    c = a.new_empty(M, N)
    out = parts(c, launch.parts)
    launch.kernel(launch.grid, tiling.threads, a, b, out, *launch.scalars, shared=launch.shared)
    return sum_parts(out, c)


@lru_cache(maxsize=4096)
def _launch(t: MmaTiling, splits: int, dtype: torch.dtype, M: int, N: int, K: int, a: Operand, b: Operand) -> Launch:
    block_k = t.k_bytes // dtype.itemsize
    k_split = split_length(K, splits, block_k)
    out = dtype if k_split >= K else torch.float32
    kernel = SOURCE.kernel(
        "matmul_tensor_cores", SIGNATURE, ELEMENT=ctype(dtype), OUTPUT=ctype(out), C_VECTOR=gcd(16 // out.itemsize, N),
        A_COPY=a.bytes, B_COPY=b.bytes, BLOCK_M=t.m, BLOCK_N=t.n, BLOCK_K=block_k, WARPS_M=t.warps_m,
        WARPS_N=t.warps_n, STAGES=t.stages, BLOCKS_PER_SM=t.blocks, **majors(a.k_major, b.k_major),
    )  # fmt: skip
    grid = (t.tiles(M, N), cdiv(K, k_split))
    return Launch(kernel, grid, (M, N, K, a.ld, b.ld, k_split), grid[1], t.shared(out))
