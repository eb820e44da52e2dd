"""Softmax on CUDA: fewer and fewer passes over memory.

naive      three passes (maximum, sum, result), one element per access
online     maximum and sum in one pass that rescales the sum when the maximum grows; 16 bytes per access
cluster    the row stays in the registers of several blocks between the passes: one read, one write
registers  the same in one block
"""

import math

import torch

from kernelmux.backends.cuda._families.rows import CLUSTERS, SHORT, Rows, as_matrix, peeled
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, ctype
from kernelmux.registry.backend import Implementation
from kernelmux.registry.util.cards import remembered

NAIVE = Source(__file__, "softmax_naive.cu")
_ROWS = Rows(Source(__file__), "softmax", numbers=("sign", "factor"), loop="online")
_LARGEST = torch.finfo(torch.float32).max
_BLOCK = 256


def softmax_naive(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    y = torch.empty_like(x)
    if y.numel():
        _naive(as_matrix(x, axis), x.dtype, scale)(x, y)
    return y


@remembered
def _naive(sizes: tuple[int, int, int], dtype: torch.dtype, scale: float) -> BoundLaunch:
    outer, n, inner = sizes
    kernel = NAIVE.kernel(
        "softmax_naive", "x* y* n:i32 inner:i64 sign:f32 factor:f32", ELEMENT=ctype(dtype), GROUP=_BLOCK
    )
    return kernel.bind(outer * inner, _BLOCK, n, inner, *_split(scale))


def softmax_online(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _ROWS.run("looped", (x,), _split(scale), axis)[0]


def softmax_cluster(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _ROWS.run("cluster", (x,), _split(scale), axis)[0]


def softmax_registers(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _ROWS.run("registers", (x,), _split(scale), axis)[0]


def _split(scale: float) -> tuple[float, float]:
    """The sign of `scale`, and |scale| for powers of two instead of e, within fp32."""
    return math.copysign(1.0, scale), min(abs(scale) * math.log2(math.e), _LARGEST)


_LAYOUT = {"x": "contiguous"}
VARIANTS = {
    "naive": Implementation(softmax_naive, "three passes, one element per access", layout=_LAYOUT),
    "online": Implementation(
        softmax_online, "maximum and sum in one pass, 16 bytes per access", layout=_LAYOUT, exempt=peeled("x")
    ),
    "cluster": Implementation(
        softmax_cluster,
        "one read: the row stays in the registers of several blocks",
        CLUSTERS,
        _LAYOUT,
        exempt=peeled("x"),
    ),
    "registers": Implementation(
        softmax_registers, "one read: the row stays in registers", SHORT, _LAYOUT, exempt=peeled("x")
    ),
}
