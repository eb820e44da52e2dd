"""conv2d_backward_input on CUDA: the rungs of conv2d on grad_out, pixels that are equal modulo the stride at a time.

direct         one thread per pixel and channel
tiled          grad_out and weights in shared memory, a product on the FP32 pipes
implicit_gemm  mma.sync on patches of grad_out gathered by cp.async
"""

from functools import lru_cache

import torch

from kernelmux.backends.cuda import _convolution as convolutions
from kernelmux.backends.cuda._convolution import BACKWARD_INPUT, Axis, Convolution, Plan, swapped
from kernelmux.backends.cuda._layout import Layout, layout
from kernelmux.backends.cuda._runtime import Source, multiprocessors
from kernelmux.registry.backend import Implementation
from kernelmux.registry.windows import Pair, windows

SOURCE = Source(__file__)


def direct(grad_out: torch.Tensor, weight: torch.Tensor, *along: Pair) -> torch.Tensor:
    return _direct(problem(layout(grad_out), layout(weight), *along)).run(grad_out, weight)


def tiled(grad_out: torch.Tensor, weight: torch.Tensor, *along: Pair) -> torch.Tensor:
    c = problem(layout(grad_out), layout(weight), *along)
    return convolutions.tiled(c, multiprocessors(grad_out)).run(grad_out, weight)


def implicit_gemm(grad_out: torch.Tensor, weight: torch.Tensor, *along: Pair) -> torch.Tensor:
    c = problem(layout(grad_out), layout(weight), *along)
    return convolutions.implicit_gemm(c, multiprocessors(grad_out)).run(grad_out, weight)


@lru_cache(maxsize=4096)
def problem(
    grad_out: Layout, weight: Layout, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> Convolution:
    """The convolution of a call."""
    over = zip(windows(weight.shape, stride, padding, dilation), grad_out.shape[2:], output_padding, strict=True)
    h, w = (Axis(n, o.length(n, rest), *o) for o, n, rest in over)
    shape = grad_out.shape[0], weight.shape[1], h.count, w.count
    return Convolution(BACKWARD_INPUT, grad_out, swapped(weight), shape, h, w)


@lru_cache(maxsize=4096)
def _direct(c: Convolution) -> Plan:
    return convolutions.direct(SOURCE, "conv2d_backward_input_direct", c)


_INDICES = convolutions.indices("NHW", "ORS")
VARIANTS = {
    "direct": Implementation(direct, "one thread per pixel and channel", arithmetic="fp32_sequential"),
    "tiled": Implementation(
        tiled, "grad_out and weights in shared memory", _INDICES, arithmetic="fp32_sequential"
    ),
    "implicit_gemm": Implementation(
        implicit_gemm, "mma.sync on patches of grad_out gathered by cp.async",
        (*convolutions.on_tensor_cores("grad_out"), *_INDICES), arithmetic="mma",
    ),
}  # fmt: skip
