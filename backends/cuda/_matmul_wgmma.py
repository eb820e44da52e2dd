"""matmul through TMA and wgmma: sm_90, 16-bit operands whose lines start at multiples of 16 bytes."""

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

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
from kernelmux.backends.cuda._runtime import Source, cdiv, ctype, multiprocessors, tensor_map

SOURCE = Source(__file__, "matmul_wgmma.cu")
SIGNATURE = "a:map b:map c* M:i32 N:i32 K:i32 k_split:i32 works:i32"
BLOCK_K = 64  # elements: 128 bytes, the widest swizzle


@dataclass(frozen=True)
class WgmmaTiling(Tiling):
    """`m` / 64 consumer warpgroups of 64 x `n`, n = 128 or 256; `cluster` blocks fetch their tile of b together."""

    stages: int
    group_m: int = 8
    cluster: int = 1

    @property
    def consumers(self) -> int:
        return self.m // 64

    @property
    def threads(self) -> int:
        return 128 * (1 + self.consumers)

    def shared(self, out: torch.dtype) -> int:
        """Bytes of the stages, of 16 lines of 128 bytes and a skew per consumer warp, of the barriers."""
        strips = 4 * self.consumers * 16 * (128 // out.itemsize + 8) * out.itemsize
        return self.stages * (self.m + self.n) * BLOCK_K * 2 + strips + 16 * self.stages


TILINGS = (WgmmaTiling(128, 256, 2.6e6, 4), WgmmaTiling(128, 128, 2.1e6, 6), WgmmaTiling(64, 128, 1.5e6, 8))


def wgmma(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    (M, K), N = a.shape, b.shape[1]
    if M * N * K == 0:
        return a.new_zeros(M, N)
    return multiply(a, b, *choose(TILINGS, M, N, K, multiprocessors(a)))


def multiply(a: torch.Tensor, b: torch.Tensor, tiling: WgmmaTiling, splits: int) -> torch.Tensor:
    """The product with a given tiling, K cut into at most `splits` pieces; no extent is 0."""
    (M, K), N = a.shape, b.shape[1]
    x, y, c = operand(a, 1), operand(b, 0), a.new_empty(M, N)
    launch = _launch(tiling, splits, a.dtype, M, N, K, x.k_major, y.k_major, multiprocessors(a))
    out = parts(c, launch.parts)
    a_map, b_map = _map(a, x, 1, tiling.m), _map(b, y, 0, tiling.n // tiling.cluster)
    launch.kernel(launch.grid, tiling.threads, a_map, b_map, out, *launch.scalars, shared=launch.shared)
    return sum_parts(out, c)


def _map(x: torch.Tensor, place: Operand, k_axis: int, extent: int) -> Any:
    """The operand as lines along its contiguous index: boxes of `extent` x 64 if that is K, else of 64 k's x 64."""
    inner = k_axis if place.k_major else 1 - k_axis
    lines = x if inner == 1 else x.t()
    if lines.stride() != (place.ld, 1):  # a single line or single elements, whose strides may be anything
        lines = lines.as_strided(lines.shape, (place.ld, 1))
    return tensor_map(lines, (extent if place.k_major else BLOCK_K, 64), swizzle=128)


@lru_cache(maxsize=4096)
def _launch(
    t: WgmmaTiling, splits: int, dtype: torch.dtype, M: int, N: int, K: int, a_k_major: bool, b_k_major: bool,
    multiprocessors: int,
) -> Launch:  # fmt: skip
    k_split = split_length(K, splits, BLOCK_K)
    out = dtype if k_split >= K else torch.float32
    works = t.tiles(M, N) * cdiv(K, k_split)
    kernel = SOURCE.kernel(
        "matmul_wgmma", SIGNATURE, ELEMENT=ctype(dtype), OUTPUT=ctype(out), C_VECTOR=gcd(16 // out.itemsize, N),
        BLOCK_N=t.n, CONSUMERS=t.consumers, STAGES=t.stages, GROUP_M=t.group_m, CLUSTER=t.cluster,
        **majors(a_k_major, b_k_major),
    )  # fmt: skip
    grid = (min(works, multiprocessors // t.cluster) * t.cluster,)
    return Launch(kernel, grid, (M, N, K, k_split, works), cdiv(K, k_split), t.shared(out))
