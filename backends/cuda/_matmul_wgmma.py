"""matmul through TMA and wgmma: sm_90, 16-bit operands whose lines start at multiples of 16 bytes."""

from dataclasses import dataclass
from math import gcd
from typing import Any

import torch

from kernelmux.backends.cuda._matmul import Operand, Tiling, choose, majors, operand, parts, split_length, sum_parts
from kernelmux.backends.cuda._runtime import Kernel, Source, cdiv, ctype, multiprocessors, tensor_map

SOURCE = Source(__file__, "matmul_wgmma.cu")
SIGNATURE = "a:map b:map c* M:i32 N:i32 K:i32 k_split:i32 works:i32"
BLOCK_K = 64  # elements: 128 bytes, the widest swizzle


@dataclass(frozen=True)
class WgmmaTiling(Tiling):
    """`m` / 64 consumer warpgroups of 64 x `n`, n = 128 or 256."""

    stages: int
    group_m: int = 8

    @property
    def consumers(self) -> int:
        return self.m // 64

    def shared(self, out: torch.dtype) -> int:
        """Bytes of the stages, of a strip of c (16 lines of 128 bytes and a skew) per consumer warp, of the barriers."""
        strips = 4 * self.consumers * 16 * (128 // out.itemsize + 8) * out.itemsize
        return self.stages * (self.m + self.n) * BLOCK_K * 2 + strips + 16 * self.stages


TILINGS = (WgmmaTiling(128, 256, 2.6e6, 4), WgmmaTiling(128, 128, 2.1e6, 6), WgmmaTiling(64, 128, 1.5e6, 8))


def wgmma(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    (M, K), N = a.shape, b.shape[1]
    if M * N * K == 0:
        return a.new_zeros(M, N)
    return multiply(a, b, *choose(TILINGS, M, N, K, multiprocessors(a)))


def multiply(a: torch.Tensor, b: torch.Tensor, tiling: Tiling, splits: int) -> torch.Tensor:
    """The product with a given tiling, K cut into at most `splits` pieces; no extent is 0."""
    (M, K), N = a.shape, b.shape[1]
    x, y, c = operand(a, 1), operand(b, 0), a.new_empty(M, N)
    k_split = split_length(K, splits, BLOCK_K)
    out = parts(c, cdiv(K, k_split))
    works = tiling.tiles(M, N) * cdiv(K, k_split)
    kernel = _kernel(tiling, a.dtype, out.dtype, N, x, y)
    kernel(
        min(works, multiprocessors(a)), 128 * (1 + tiling.consumers), _map(a, x, 1, tiling.m), _map(b, y, 0, tiling.n),
        out, M, N, K, k_split, works, shared=tiling.shared(out.dtype),
    )  # fmt: skip
    return sum_parts(out, c)


def _map(x: torch.Tensor, place: Operand, k_axis: int, extent: int) -> Any:
    """The operand as lines along its contiguous index: boxes of `extent` x 64 if that is K, else of 64 k's x 64."""
    inner = k_axis if place.k_major else 1 - k_axis
    lines = x.as_strided((x.shape[1 - inner], x.shape[inner]), (place.ld, 1))
    return tensor_map(lines, (extent if place.k_major else BLOCK_K, 64), swizzle=128)


def _kernel(t: WgmmaTiling, dtype: torch.dtype, out: torch.dtype, N: int, a: Operand, b: Operand) -> Kernel:
    return SOURCE.kernel(
        "matmul_wgmma", SIGNATURE, ELEMENT=ctype(dtype), OUTPUT=ctype(out), C_VECTOR=gcd(16 // out.itemsize, N),
        BLOCK_N=t.n, CONSUMERS=t.consumers, STAGES=t.stages, GROUP_M=t.group_m, **majors(a, b),
    )  # fmt: skip
