"""c[M, N] = a[M, K] @ b[K, N] of 8-bit integers: int32, or bf16 with scales.

tensor_cores  mma.sync on tiles in shared memory: any strides
wgmma         TMA feeds warpgroup products in a persistent grid
few_rows      the same for up to 128 rows of a: the weights are read at the rate of the memory, clusters share K
"""

import torch

from kernelmux.backends.cuda._families.byte_products import (
    INDICES,
    ON_HOPPER,
    ByteLaunch,
    ByteTile,
    byte_launch,
    fastest,
    step,
    vector,
)
from kernelmux.backends.cuda._families.few_rows import FEW_ROWS, few_rows_launch, few_rows_tile, pays
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype, multiprocessors
from kernelmux.backends.cuda.fp8_matmul._lines import on_lines, repays
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Multiplies
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__)
WGMMA = Source(__file__, "int8_matmul_wgmma.cu")
FEW_ROWS_SOURCE = Source(__file__, "int8_matmul_few_rows.cu")
_TILE = 128
TILES = (
    ByteTile(64, 410), ByteTile(128, 546), ByteTile(128, 546, down=2), ByteTile(192, 820), ByteTile(192, 800, down=2),
    ByteTile(256, 1024, halves=True), ByteTile(256, 1016, halves=True, down=2),
)  # fmt: skip
Maybe = torch.Tensor | None
Scales = tuple[bool, int, int]


def tensor_cores(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    c, scales = _result(a, b, scale_a, scale_b)
    if c.numel() and a.numel():
        _tensor_cores(layout(a), layout(b), scales)(a, b, scale_a, scale_b, c)
    return c


def wgmma(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    if not repays(a, b):
        return tensor_cores(a, b, scale_a, scale_b)
    c, scales = _result(a, b, scale_a, scale_b)
    if c.numel() and a.numel():
        a, b = on_lines(a, 1), on_lines(b, 0)
        _wgmma(layout(a), layout(b), scales, multiprocessors(a))(a, b, scale_a, scale_b, c)
    return c


def few_rows(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    if not (pays(a.shape[0], b.shape[1], multiprocessors(a)) and repays(a, b)):
        return wgmma(a, b, scale_a, scale_b)
    c, scales = _result(a, b, scale_a, scale_b)
    if c.numel() and a.numel():
        a, b = on_lines(a, 1), on_lines(b, 0)
        _few_rows(layout(a), layout(b), scales, multiprocessors(a))(a, b, scale_a, scale_b, c)
    return c


def _result(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> tuple[torch.Tensor, Scales]:
    """c, of zeros if K is 0, and whether there are scales, with their steps."""
    scaled = scale_a is not None or scale_b is not None
    make = a.new_empty if a.shape[1] else a.new_zeros
    c = make((a.shape[0], b.shape[1]), dtype=torch.bfloat16 if scaled else torch.int32)
    return c, (scaled, step(scale_a), step(scale_b))


def _defines(scales: Scales) -> dict[str, object]:
    scaled, a, b = scales
    out = ctype(torch.bfloat16 if scaled else torch.int32)
    return {"SCALED": int(scaled), "SCALES_A": a, "SCALES_B": b, "OUTPUT": out}


@remembered
def _tensor_cores(a: Layout, b: Layout, scales: Scales) -> BoundLaunch:
    (M, K), N = a.shape, b.shape[1]
    kernel = SOURCE.kernel(
        "int8_matmul_tensor_cores", "a* b* scale_a* scale_b* c* M:i32 N:i32 K:i32 a_m:i64 a_k:i64 b_k:i64 b_n:i64",
        **_defines(scales), ROWS=_TILE, A_VECTOR=vector(a, 1), B_VECTOR=vector(b, 0),
    )  # fmt: skip
    return kernel.bind(cdiv(M, _TILE) * cdiv(N, _TILE), 256, M, N, K, *a.strides, *b.strides)


@remembered
def _wgmma(a: Layout, b: Layout, scales: Scales, multiprocessors: int) -> ByteLaunch:
    t = fastest(a, b, multiprocessors, TILES)
    return wgmma_launch(a, b, scales, t, multiprocessors)


def wgmma_launch(a: Layout, b: Layout, scales: Scales, t: ByteTile, multiprocessors: int) -> ByteLaunch:
    """The launch with a given tile."""
    scaled, _, of_columns = scales
    return byte_launch(WGMMA, a, b, t, 2 if scaled else 4, bool(of_columns), multiprocessors, **_defines(scales))


@remembered
def _few_rows(a: Layout, b: Layout, scales: Scales, multiprocessors: int) -> ByteLaunch:
    t = few_rows_tile(a.shape[0], b.shape[1], a.shape[1], multiprocessors)
    return few_rows_launch(FEW_ROWS_SOURCE, a, b, t, **_defines(scales))


_SCALES = {"scale_a": "contiguous", "scale_b": "contiguous"}
_MATRICES = {**_SCALES, "a": "matrix", "b": "matrix"}
VARIANTS = {
    "tensor_cores": Implementation(
        tensor_cores, "mma.sync on tiles in shared memory", (Multiplies("a"), *INDICES), _SCALES, arithmetic="int32"
    ),
    "wgmma": Implementation(
        wgmma, "TMA feeds warpgroup products in a persistent grid", ON_HOPPER, _MATRICES, arithmetic="int32"
    ),
    "few_rows": Implementation(
        few_rows, "the same for few rows of a, clusters share K", FEW_ROWS, _MATRICES, arithmetic="int32"
    ),
}
