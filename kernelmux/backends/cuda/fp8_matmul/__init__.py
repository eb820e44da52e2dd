"""c[M, N] = (scale_a * a[M, K]) @ (scale_b * b[K, N]) of 8-bit floats.

tensor_cores  mma.sync on tiles that are laid along K in shared memory: any strides
wgmma         TMA feeds warpgroup products in a persistent grid; an operand that it cannot read is copied first
few_rows      the same for up to 128 rows of a: the weights are read at the rate of the memory, clusters share K
"""

from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.byte_products import (
    INDICES,
    ON_HOPPER,
    ByteLaunch,
    ByteTile,
    byte_launch,
    fastest,
    vector,
)
from kernelmux.backends.cuda._families.few_rows import FEW_ROWS, few_rows_launch, few_rows_tile, pays
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype, multiprocessors
from kernelmux.backends.cuda.fp8_matmul._lines import on_lines, repays
from kernelmux.registry import dtypes
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Multiplies
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__)
WGMMA = Source(__file__, "fp8_matmul_wgmma.cu")
FEW_ROWS_SOURCE = Source(__file__, "fp8_matmul_few_rows.cu")
BLOCKS = 2  # the kind of scales that are for blocks; 0: one for all, 1: one per line


# H200: a stage of 256 columns takes 0.75 us, 1024 cycles at the clock that its power allows, and narrow ones wait for L2.
# Widths that are no multiple of 64 are slower than the next one that is: without promoted sums 8192 x 4096 by 4096 x 4096
# took 230.8 us with 240 columns, 200.2 with 256. Pairs of blocks that fetch b together leave L2 less to do.
SUMS = (
    ByteTile(64, 410), ByteTile(128, 546), ByteTile(128, 546, down=2), ByteTile(192, 820), ByteTile(192, 800, down=2),
    ByteTile(256, 1024, halves=True), ByteTile(256, 1016, halves=True, down=2),
)  # fmt: skip
PROMOTED = SUMS[:5]


class Fp8Scaling(NamedTuple):
    """Kinds of scales, whether sums are promoted every 128 of K, and the dtype of the result."""

    scales_a: int
    scales_b: int
    promotes: bool
    out: torch.dtype

    def macros(self, a: Layout, b: Layout) -> dict[str, object]:
        """The options of both kernels."""
        formats = {"A_FORMAT": dtypes.SHORT[a.dtype], "B_FORMAT": dtypes.SHORT[b.dtype], "OUTPUT": ctype(self.out)}
        return {**formats, "SCALES_A": self.scales_a, "SCALES_B": self.scales_b, "PROMOTES": int(self.promotes)}


def tensor_cores(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    c, end = _result(a, b, scale_a, scale_b, out_dtype, accumulation)
    if c.numel() and a.numel():
        _tensor_cores(layout(a), layout(b), end)(a, b, scale_a, scale_b, c)
    return c


def wgmma(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    if not repays(a, b):
        return tensor_cores(a, b, scale_a, scale_b, out_dtype, accumulation)
    c, end = _result(a, b, scale_a, scale_b, out_dtype, accumulation)
    if c.numel() and a.numel():
        left, right, *shapes = _bytes(a, b)
        _wgmma(*shapes, end, multiprocessors(a))(left, right, scale_a, scale_b, c)
    return c


def few_rows(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    if not (pays(a.shape[0], b.shape[1], multiprocessors(a)) and repays(a, b)):
        return wgmma(a, b, scale_a, scale_b, out_dtype, accumulation)
    c, end = _result(a, b, scale_a, scale_b, out_dtype, "full")  # the products are not what takes time
    if c.numel() and a.numel():
        left, right, *shapes = _bytes(a, b)
        _few_rows(*shapes, end, multiprocessors(a))(left, right, scale_a, scale_b, c)
    return c


def _bytes(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Layout, Layout]:
    """Both operands as the copy engine takes them, and their layouts, which know the formats."""
    left, right = on_lines(a.view(torch.uint8), 1), on_lines(b.view(torch.uint8), 0)
    return left, right, layout(left)._replace(dtype=a.dtype), layout(right)._replace(dtype=b.dtype)


def _result(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> tuple[torch.Tensor, Fp8Scaling]:
    """c, of zeros if K is 0, and what becomes of the sums."""
    out, make = dtypes.parse(out_dtype), torch.empty if a.shape[1] else torch.zeros
    kinds = _kind(scale_a, (a.shape[0], 1)), _kind(scale_b, (1, b.shape[1]))
    promotes = accumulation == "full" or BLOCKS in kinds
    return make((a.shape[0], b.shape[1]), dtype=out, device=a.device), Fp8Scaling(*kinds, promotes, out)


def _kind(scale: torch.Tensor, lines: tuple[int, int]) -> int:
    return 0 if scale.dim() == 0 else 1 if scale.shape == lines else BLOCKS


@remembered
def _tensor_cores(a: Layout, b: Layout, end: Fp8Scaling) -> BoundLaunch:
    (M, K), N = a.shape, b.shape[1]
    rows = 64 if end.promotes else 128  # of a tile: promoted sums take twice the registers
    kernel = SOURCE.kernel(
        "fp8_matmul_tensor_cores", "a* b* scale_a* scale_b* c* M:i32 N:i32 K:i32 a_m:i64 a_k:i64 b_k:i64 b_n:i64",
        **end.macros(a, b), ROWS=rows, A_VECTOR=vector(a, 1), B_VECTOR=vector(b, 0),
    )  # fmt: skip
    return kernel.bind(cdiv(M, rows) * cdiv(N, 128), 256, M, N, K, *a.strides, *b.strides)


@remembered
def _wgmma(a: Layout, b: Layout, end: Fp8Scaling, multiprocessors: int) -> ByteLaunch:
    return wgmma_launch(a, b, end, tile(a, b, end, multiprocessors), multiprocessors)


def wgmma_launch(a: Layout, b: Layout, end: Fp8Scaling, t: ByteTile, multiprocessors: int) -> ByteLaunch:
    """The launch with a given tile."""
    return byte_launch(WGMMA, a, b, t, end.out.itemsize, end.scales_b == 1, multiprocessors, **end.macros(a, b))


@remembered
def _few_rows(a: Layout, b: Layout, end: Fp8Scaling, multiprocessors: int) -> ByteLaunch:
    t = few_rows_tile(a.shape[0], b.shape[1], a.shape[1], multiprocessors)
    return few_rows_launch(FEW_ROWS_SOURCE, a, b, t, **end.macros(a, b))


def tile(a: Layout, b: Layout, end: Fp8Scaling, multiprocessors: int) -> ByteTile:
    """The quickest one by `ByteTile.time`; blocks of scales are as wide as a tile.

    H200, us, of such scales: 4096 x 7168 by 7168 x 4096 264 in single blocks, 275 in pairs of them, 2688 x 6896 by 6896 x
    5744, whose lines are odd, 331 and 271.
    """
    if BLOCKS in (end.scales_a, end.scales_b):
        return fastest(a, b, multiprocessors, PROMOTED[1:3])
    return fastest(a, b, multiprocessors, PROMOTED if end.promotes else SUMS)


_SCALES = {"scale_a": "contiguous", "scale_b": "contiguous"}
_MATRICES = {**_SCALES, "a": "matrix", "b": "matrix"}
VARIANTS = {
    "tensor_cores": Implementation(
        tensor_cores, "mma.sync on tiles laid along K in shared memory", (Multiplies("a"), *INDICES), _SCALES, "mma"
    ),
    "wgmma": Implementation(
        wgmma, "TMA feeds warpgroup products; an operand that it cannot read is copied", ON_HOPPER, _MATRICES, "mma"
    ),
    "few_rows": Implementation(few_rows, "the same for few rows of a, clusters share K", FEW_ROWS, _MATRICES, "mma"),
}
