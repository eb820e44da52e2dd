"""RMS normalisation on CUDA.

naive      a block per row reads it twice, one element per access
two_pass   16 bytes per access; the second read comes from L2
cluster    the row stays in the registers of several blocks: one read, one write
registers  the same in one block
"""

import torch

from kernelmux.backends.cuda._families.rows import CLUSTERS, SHORT, Rows, peeled
from kernelmux.backends.cuda._launch.runtime import Source, ctype
from kernelmux.registry.backend import Implementation

NAIVE = Source(__file__, "rms_norm_naive.cu")
_ROWS = Rows(Source(__file__), "rms_norm", weights=("weight",), numbers=("eps",), loop="two_pass", follows=True)
_NAIVE_BLOCK = 512


def rms_norm_naive(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y, n = torch.empty_like(x), weight.numel()
    kernel = NAIVE.kernel("rms_norm_naive", "x* weight* y* n:i32 eps:f32", ELEMENT=ctype(x.dtype), GROUP=_NAIVE_BLOCK)
    if y.numel():
        kernel(x.numel() // n, _NAIVE_BLOCK, x, weight, y, n, eps)
    return y


def rms_norm_two_pass(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _ROWS.run("looped", (x, weight), (eps,))[0]


def rms_norm_cluster(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _ROWS.run("cluster", (x, weight), (eps,))[0]


def rms_norm_registers(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _ROWS.run("registers", (x, weight), (eps,))[0]


_LAYOUT, _PEELED = {"x": "contiguous", "weight": "contiguous"}, peeled("x")
VARIANTS = {
    "naive": Implementation(rms_norm_naive, "two passes, one element per access", layout=_LAYOUT),
    "two_pass": Implementation(
        rms_norm_two_pass, "16 bytes per access, second read from L2", layout=_LAYOUT, exempt=_PEELED
    ),
    "cluster": Implementation(
        rms_norm_cluster,
        "one read: the row stays in the registers of several blocks",
        CLUSTERS,
        _LAYOUT,
        exempt=_PEELED,
    ),
    "registers": Implementation(
        rms_norm_registers, "one read: the row stays in registers", SHORT, _LAYOUT, exempt=_PEELED
    ),
}
