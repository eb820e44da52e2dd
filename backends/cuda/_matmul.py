"""What the matmul launchers share: how an operand lies in memory, how a product is cut into tiles and splits of K."""

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import NamedTuple, TypeVar

import torch

from kernelmux.backends.cuda._runtime import Kernel, Source, cdiv, ctype

SPLITS = Source(__file__, "matmul_splits.cu")
THREADS = 256


class Operand(NamedTuple):
    """Where the elements are: whether K is contiguous, the stride of the other index, bytes of the widest access."""

    k_major: bool
    ld: int
    bytes: int


def operand(x: torch.Tensor, k_axis: int) -> Operand:
    """How to read `x`, one of whose strides is 1; `k_axis` is the axis that is summed over."""
    inner = 0 if x.stride(0) == 1 and (x.stride(1) != 1 or x.shape[1] == 1) else 1
    extent, lines = x.shape[inner], x.shape[1 - inner]
    ld = x.stride(1 - inner) if lines > 1 else cdiv(extent, 16) * 16  # a single line has no next one
    return Operand(inner == k_axis, ld, gcd(16, x.data_ptr(), ld * x.element_size(), extent * x.element_size()))


def majors(a_k_major: bool, b_k_major: bool) -> dict[str, int]:
    """The macros that tell a kernel which index of each operand is contiguous."""
    return {"A_K_MAJOR": int(a_k_major), "B_K_MAJOR": int(b_k_major)}


@dataclass(frozen=True)
class Launch:
    """What a kind of call has in common; finding it again is cheaper than working it out."""

    kernel: Kernel
    grid: tuple[int, ...]
    scalars: tuple[int, ...]
    parts: int = 1
    shared: int = 0


@dataclass(frozen=True)
class Tiling:
    """A block's tile of c, `rate` being its products per microsecond on one multiprocessor with operands at hand."""

    m: int
    n: int
    rate: float
    cluster = 1  # blocks that work on neighbours in m together

    def tiles(self, M: int, N: int) -> int:
        """Tiles of c, those of a cluster counting as one."""
        return cdiv(M, self.m * self.cluster) * cdiv(N, self.n)

    def microseconds(self, M: int, N: int, K: int, splits: int, multiprocessors: int) -> float:
        """A rough time: whole waves of tiles, then for a split K the second launch and two passes over the parts."""
        waves = cdiv(self.tiles(M, N) * splits, multiprocessors // self.cluster)
        second_pass = 4 + splits * M * N * 8 / 4e6 if splits > 1 else 0  # bytes at 4 TB/s
        return waves * self.m * self.n * cdiv(K, splits) / self.rate + second_pass


AnyTiling = TypeVar("AnyTiling", bound=Tiling)


@lru_cache(maxsize=4096)
def choose(tilings: tuple[AnyTiling, ...], M: int, N: int, K: int, multiprocessors: int) -> tuple[AnyTiling, int]:
    """The quickest tiling and number of splits of K by `Tiling.microseconds`; splits of 256 or more."""
    splits = [s for s in range(1, 33) if s == 1 or s * 256 <= K]
    choices = ((t, s) for t in tilings for s in splits)
    return min(choices, key=lambda c: c[0].microseconds(M, N, K, c[1], multiprocessors))


def parts(c: torch.Tensor, splits: int) -> torch.Tensor:
    """Where the kernel writes: c itself, or fp32 [splits, M, N] for `sum_parts`."""
    return c if splits == 1 else c.new_empty(splits, *c.shape, dtype=torch.float32)


def sum_parts(split: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """c = the sum of the parts in order, rounded once; c itself if nothing was split."""
    if split is not c:
        kernel = SPLITS.kernel("matmul_sum_splits", "parts* c* size:i64 splits:i32", ELEMENT=ctype(c.dtype))
        kernel(cdiv(c.numel(), THREADS), THREADS, split, c, c.numel(), split.shape[0])
    return c


def split_length(K: int, splits: int, block_k: int) -> int:
    """K of each split: equal shares, rounded up to whole tiles."""
    return cdiv(cdiv(K, splits), block_k) * block_k
