"""conv2d on CUDA: from one thread per output to an implicit product on the tensor cores.

direct         one thread per output
tiled          patches and weights in shared memory, a product on the FP32 pipes
implicit_gemm  mma.sync on patches gathered by cp.async

Images and weights are read where they lie, NCHW or channels-last, with any strides. The first two take every call.
"""

from functools import lru_cache

import torch

from kernelmux.backends.cuda import _convolution as convolutions
from kernelmux.backends.cuda._convolution import CONV2D, Axis, Convolution, Plan
from kernelmux.backends.cuda._layout import Layout, layout
from kernelmux.backends.cuda._runtime import Source, multiprocessors
from kernelmux.registry.backend import Implementation
from kernelmux.registry.windows import Pair, windows

Maybe = torch.Tensor | None
SOURCE = Source(__file__)


def direct(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    return _direct(problem(layout(x), layout(weight), *along)).run(x, weight, bias)


def tiled(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    c = problem(layout(x), layout(weight), *along)
    return convolutions.tiled(c, multiprocessors(x)).run(x, weight, bias)


def implicit_gemm(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    c = problem(layout(x), layout(weight), *along)
    return convolutions.implicit_gemm(c, multiprocessors(x)).run(x, weight, bias)


@lru_cache(maxsize=4096)
def problem(x: Layout, weight: Layout, stride: Pair, padding: Pair, dilation: Pair) -> Convolution:
    """The convolution of a call."""
    over = windows(weight.shape, stride, padding, dilation)
    h, w = (Axis(n, o.places(n), *o) for o, n in zip(over, x.shape[2:], strict=True))
    return Convolution(CONV2D, x, weight, (x.shape[0], weight.shape[0], h.count, w.count), h, w)


@lru_cache(maxsize=4096)
def _direct(c: Convolution) -> Plan:
    return convolutions.direct(SOURCE, "conv2d_direct", c)


_LAYOUT = {"bias": "contiguous"}
_INDICES = convolutions.indices("NPQ", "CRS")
VARIANTS = {
    "direct": Implementation(direct, "one thread per output", layout=_LAYOUT, arithmetic="fp32_sequential"),
    "tiled": Implementation(
        tiled, "patches and weights in shared memory", _INDICES, _LAYOUT, arithmetic="fp32_sequential"
    ),
    "implicit_gemm": Implementation(
        implicit_gemm, "mma.sync on patches gathered by cp.async",
        (*convolutions.on_tensor_cores("x"), *_INDICES), _LAYOUT, arithmetic="mma",
    ),
}  # fmt: skip
