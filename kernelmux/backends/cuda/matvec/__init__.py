"""y[B, N] = scale * (x[B, K] @ weight[N, K]^T) for a few vectors: the time is that of reading the weight.

rows          each block owns a few rows and its threads multiply for themselves: any dtype, any length
tensor_cores  mma.sync on operands as they come from memory: more vectors cost no more instructions
wgmma         as matmul multiplies few rows: the copy engine reads the weight, blocks of a cluster share K
"""

from math import gcd

import torch

from kernelmux.backends.cuda._families import vectors
from kernelmux.backends.cuda._families.epilogue import PLAIN
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype
from kernelmux.backends.cuda.matmul._few_rows_lines import any_lines
from kernelmux.backends.cuda.matmul._tf32 import wgmma as product
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import (
    Aligned,
    AtDefault,
    AtLeast,
    AtMost,
    Capability,
    Condition,
    Dtypes,
    Either,
    Multiple,
    Multiplies,
    OddLines,
)
from kernelmux.registry.util.cards import remembered

TENSOR_CORES = Source(__file__, "matvec_tensor_cores.cu")
_TILE, _TILE_WARPS = 16, 8
# Tiles of a block, for which x is read once, and accesses of a thread in flight, which order the sums. H200, in one run, us
# with two and one, and with one and two: 14336 x 4096 bf16, 16 vectors 43.0 and 55.3, 8 39.4 and 46.3; 4096 x 14336, 16
# vectors 55.8 and 75.3; bytes, 14336 x 4096, 16 vectors 32.1 and 30.1.
_TILES, _TILES_OF_BYTES = (2, 1), (1, 2)
LEAST_VECTORS = {2: 1, 4: 4, 8: 5, 16: 2}  # of a product, by the multiples of bytes at which lines of the weight begin


def rows(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    y = x.new_zeros(len(x), len(weight)) if weight.shape[1] == 0 else x.new_empty(len(x), len(weight))
    if y.numel() and weight.numel():
        _rows(layout(weight), layout(x))(x, weight, y, scale)
    return y


def tensor_cores(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    y = x.new_zeros(len(x), len(weight)) if weight.shape[1] == 0 else x.new_empty(len(x), len(weight))
    if y.numel() and weight.numel():
        _tensor_cores(layout(weight), layout(x))(weight, x, scale, y)
    return y


def wgmma(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Where rows would be slower.

    H200, bf16, us by rows and so: 4096 x 11008, four vectors, 32.1 and 31.3, 18304 x 11296, six, 155 and 120. Lines at odd
    multiples of 2 bytes: 3744 x 18781, one, 74.0 and 49.7, 50257 x 1023 69.0 and 42.0; of 4: 50257 x 1026, three, 40.6 and
    58.0, 4096 x 11006, three, 37.2 and 34.2, four, 47.4 and 34.3; of 8: 4096 x 11004, four, 30.6 and 44.1.
    """
    lines = gcd(16, weight.stride(0) * weight.element_size())
    takes = weight.data_ptr() % 16 == 0 and (lines == 16 or any_lines(layout(weight), 1))
    if takes and len(x) >= LEAST_VECTORS[lines]:
        return product(x, weight.t(), "ieee", PLAIN)
    return rows(weight, x, scale)


@remembered
def _rows(weight: Layout, x: Layout) -> BoundLaunch:
    return vectors.launch(weight, x, scaled=True)


@remembered
def _tensor_cores(weight: Layout, x: Layout) -> BoundLaunch:
    (N, K), B, size = weight.shape, x.shape[0], weight.dtype.itemsize
    tiles, unroll = _TILES_OF_BYTES if size == 1 else _TILES
    kernel = TENSOR_CORES.kernel(
        "matvec_tensor_cores", "weight* x* scale* y* N:i32 K:i32 B:i32 weight_row:i64 x_row:i64",
        ELEMENT=ctype(x.dtype), INT8=int(size == 1), TILES=cdiv(B, 8), WARPS=_TILE_WARPS, UNROLL=unroll, ROW_TILES=tiles,
    )  # fmt: skip
    return kernel.bind(cdiv(N, _TILE * tiles), 32 * _TILE_WARPS, N, K, B, weight.strides[0] * size, x.strides[0])


_LAYOUT = {"weight": "last", "x": "last", "scale": "contiguous"}
_INDICES = tuple(AtMost(axis, 2**31 - 2**16) for axis in "NK")
# H200, 14336 x 4096 bf16: one vector takes 34 us by rows and 44 on tensor cores, 16 vectors 82 and 52.
_ON_TENSOR_CORES: tuple[Condition, ...] = (
    Multiplies("x"), Dtypes("weight", torch.float16, torch.bfloat16, torch.int8), AtLeast("B", 5),
    Dtypes("x", torch.float16, torch.bfloat16), Multiple("K", 16), Aligned("weight"), Aligned("x"), *_INDICES,
)  # fmt: skip
_ON_HOPPER: tuple[Condition, ...] = (
    Capability((9, 0), below=(10, 0)), Dtypes("weight", torch.float16, torch.bfloat16), AtDefault("scale"),
    Either(AtLeast("B", 2), OddLines("weight")), AtLeast("N", 64), AtLeast("K", 128), *_INDICES,
)  # fmt: skip
VARIANTS = {
    "rows": Implementation(rows, "a few rows per block, all that is read of x serves them", _INDICES, _LAYOUT),
    "tensor_cores": Implementation(
        tensor_cores, "mma.sync on operands as they come from memory", _ON_TENSOR_CORES, _LAYOUT, arithmetic="mma_16"
    ),
    "wgmma": Implementation(
        wgmma, "as few rows of a product, in clusters that share K", _ON_HOPPER, _LAYOUT, arithmetic="mma_16"
    ),
}
