"""conv2d_backward_weight on CUDA: few sums, each over all positions, so the product's K is split over blocks.

direct         one thread per element of the weight
tiled          grad_out and patches in shared memory, a product on the FP32 pipes
implicit_gemm  mma.sync on grad_out and patches gathered by cp.async

The last two write partial sums and add them in order: the same call gives the same bits.
"""

from functools import lru_cache

import torch

from kernelmux.backends.cuda import _convolution as convolutions
from kernelmux.backends.cuda._convolution import BACKWARD_WEIGHT, Axis, Convolution, Plan
from kernelmux.backends.cuda._layout import Layout, layout
from kernelmux.backends.cuda._runtime import Source, multiprocessors
from kernelmux.registry.backend import Implementation
from kernelmux.registry.windows import Pair, windows

SOURCE = Source(__file__)


def direct(grad_out: torch.Tensor, x: torch.Tensor, *along: Pair) -> torch.Tensor:
    return _direct(problem(layout(grad_out), layout(x), *along)).run(grad_out, x)


def tiled(grad_out: torch.Tensor, x: torch.Tensor, *along: Pair) -> torch.Tensor:
    c = problem(layout(grad_out), layout(x), *along)
    return convolutions.tiled(c, multiprocessors(x)).run(grad_out, x)


def implicit_gemm(grad_out: torch.Tensor, x: torch.Tensor, *along: Pair) -> torch.Tensor:
    c = problem(layout(grad_out), layout(x), *along)
    return convolutions.implicit_gemm(c, multiprocessors(x)).run(grad_out, x)


@lru_cache(maxsize=4096)
def problem(grad_out: Layout, x: Layout, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Convolution:
    """The convolution of a call."""
    over = zip(windows(kernel, stride, padding, dilation), x.shape[2:], grad_out.shape[2:], strict=True)
    h, w = (Axis(size, count, *o) for o, size, count in over)
    return Convolution(BACKWARD_WEIGHT, x, grad_out, (grad_out.shape[1], x.shape[1], *kernel), h, w)


@lru_cache(maxsize=4096)
def _direct(c: Convolution) -> Plan:
    return convolutions.direct(SOURCE, "conv2d_backward_weight_direct", c)


_INDICES = convolutions.indices("NPQ", "CRS")
VARIANTS = {
    "direct": Implementation(direct, "one thread per element of the weight", arithmetic="fp32_sequential"),
    "tiled": Implementation(
        tiled, "grad_out and patches in shared memory", _INDICES, arithmetic="fp32_sequential"
    ),
    "implicit_gemm": Implementation(
        implicit_gemm, "mma.sync on grad_out and patches gathered by cp.async",
        (*convolutions.on_tensor_cores("grad_out"), *_INDICES), arithmetic="mma",
    ),
}  # fmt: skip
