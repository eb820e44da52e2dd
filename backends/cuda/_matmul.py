"""What the matmul launchers share: how an operand lies in memory, how a product is cut into tiles and splits of K.

A launcher works out a `Plan` once per kind of call (shapes, strides, dtype, alignment) and afterwards only fills in the
addresses.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple, TypeVar

import torch

from kernelmux.backends.cuda._epilogue import Ending, Epilogue
from kernelmux.backends.cuda._layout import Layout
from kernelmux.backends.cuda._runtime import Bound, Kernel, Source, Tiles, cdiv, ctype

SPLITS = Source(__file__, "matmul_splits.cu")
THREADS = 256


class Operand(NamedTuple):
    """Where the elements are: whether K is contiguous, the stride of the other index, bytes of the widest access."""

    k_major: bool
    ld: int
    bytes: int


def operand(x: Layout, k_axis: int) -> Operand:
    """How to read `x`, one of whose strides is 1; `k_axis` is the axis that is summed over."""
    inner = 0 if x.strides[0] == 1 and (x.strides[1] != 1 or x.shape[1] == 1) else 1
    extent, lines, size = x.shape[inner], x.shape[1 - inner], x.dtype.itemsize
    ld = x.strides[1 - inner] if lines > 1 else cdiv(extent, 16) * 16  # a single line has no next one
    return Operand(inner == k_axis, ld, gcd(16, x.offset, ld * size, extent * size))


def majors(a: Operand, b: Operand) -> dict[str, int]:
    """The macros that tell a kernel which index of each operand is contiguous."""
    return {"A_K_MAJOR": int(a.k_major), "B_K_MAJOR": int(b.k_major)}


@dataclass(frozen=True)
class Plan:
    """A kind of product, ready to run.

    a, b: descriptors of the operands where the kernel wants those. parts: pieces of K, whose products land in
    fp32 [parts, M, N] and are added by `sum_parts`.
    """

    launch: Bound
    shape: tuple[int, int]
    a: Tiles | None = None
    b: Tiles | None = None
    parts: int = 1
    sum_parts: Bound | None = None

    def run(self, a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
        c = a.new_empty(self.shape)
        left, right = self.a.of(a) if self.a else a, self.b.of(b) if self.b else b
        if self.sum_parts is None:
            self.launch(left, right, c, *epilogue.tensors)
            return c
        parts = a.new_empty((self.parts, *self.shape), dtype=torch.float32)
        self.launch(left, right, parts)
        self.sum_parts(parts, c, *epilogue.tensors)
        return c


def adding(parts: int, shape: tuple[int, int], dtype: torch.dtype, end: Ending) -> Bound | None:
    """The launch that adds the parts in order, ends the product and rounds once; None if K is in one piece."""
    if parts == 1:
        return None
    signature = f"parts* {end.tensors} size:i64 splits:i32 N:i32"
    kernel = SPLITS.kernel("matmul_sum_splits", signature, ELEMENT=ctype(dtype), **end.macros)
    size = shape[0] * shape[1]
    return kernel.bind(cdiv(size, THREADS), THREADS, size, parts, shape[1])


def simple_kernel(source: Source, entry: str, dtype: torch.dtype, end: Ending, **defines: object) -> Kernel:
    """A kernel that knows no splits."""
    signature = f"a* b* {end.tensors} M:i32 N:i32 K:i32 lda:i64 ldb:i64"
    return source.kernel(entry, signature, ELEMENT=ctype(dtype), **defines, **end.macros)


def simple_plan(kernel: Kernel, grid: int, block: int | tuple[int, int], a: Layout, b: Layout) -> Plan:
    """The plan of a kernel that knows no splits."""
    (M, K), N = a.shape, b.shape[1]
    return Plan(kernel.bind(grid, block, M, N, K, operand(a, 1).ld, operand(b, 0).ld), (M, N))


@dataclass(frozen=True)
class Tiling:
    """A block's tile of c; `rate` is its products per microsecond on one multiprocessor with operands at hand."""

    m: int
    n: int
    rate: float
    blocks = 1  # that share a multiprocessor

    def tiles(self, M: int, N: int) -> int:
        return cdiv(M, self.m) * cdiv(N, self.n)

    def microseconds(self, M: int, N: int, K: int, splits: int, multiprocessors: int) -> float:
        """A rough time: whole waves of tiles, half a microsecond to fill and drain each, the second pass of a split.

        The measured times of 1024^3 to 8192^3 on an H200 follow it within 5 %, plus 4.5 us for the launch.
        """
        waves = cdiv(self.tiles(M, N) * splits, multiprocessors * self.blocks)
        second_pass = 4 + splits * M * N * 8 / 4e6 if splits > 1 else 0  # bytes at 4 TB/s
        return waves * (0.5 + self.blocks * self.m * self.n * cdiv(K, splits) / self.rate) + second_pass


AnyTiling = TypeVar("AnyTiling", bound=Tiling)


def choose(tilings: Iterable[AnyTiling], M: int, N: int, K: int, multiprocessors: int) -> tuple[AnyTiling, int]:
    """The quickest tiling and number of splits of K by `Tiling.microseconds`; splits of 256 or more."""
    splits = [s for s in range(1, 33) if s == 1 or s * 256 <= K]
    choices = ((t, s) for t in tilings for s in splits)
    return min(choices, key=lambda c: c[0].microseconds(M, N, K, c[1], multiprocessors))


def split_length(K: int, splits: int, block_k: int) -> int:
    """K of each split: equal shares, rounded up to whole tiles."""
    return cdiv(cdiv(K, splits), block_k) * block_k
