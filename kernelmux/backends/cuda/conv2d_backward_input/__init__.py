"""conv2d_backward_input on CUDA: the rungs of conv2d on grad_out, pixels that are equal modulo the stride at a time.

direct               one thread per pixel and channel
tiled                grad_out and weights in shared memory, a product on the FP32 pipes
bf16x6               fp32 as three planes of bf16, whose six products wgmma computes; grad_out by TMA
implicit_gemm        mma.sync on patches of grad_out gathered by cp.async
implicit_gemm_wgmma  the next tiles are gathered while wgmma multiplies
implicit_gemm_tma    the copy engine gathers, in its im2col mode; channels-last, other images are copied first
patches              windows that do not overlap are rows of one product, whose sums go where their pixels are
pointwise            kernels of one element on contiguous images are a batch of products
implicit_gemm_phases all phases are columns of one product, which reads grad_out once: for few channels; copied likewise
"""

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import Source, card, multiprocessors
from kernelmux.backends.cuda.conv2d import _pointwise
from kernelmux.backends.cuda.conv2d._bf16x6 import GRADIENTS, RepaysPlanesOfImages
from kernelmux.backends.cuda.conv2d._bf16x6 import asks as asks_of_planes
from kernelmux.backends.cuda.conv2d._im2col import backwards, ready, result, spacing
from kernelmux.backends.cuda.conv2d._patches import FewOrCovered
from kernelmux.backends.cuda.conv2d._patches import asks as asks_of_patches
from kernelmux.backends.cuda.conv2d._plans import ConvolutionPlan, Planner, direct, ladder
from kernelmux.backends.cuda.conv2d._problem import BACKWARD_INPUT, Convolution, ConvolutionAxis, swapped
from kernelmux.backends.cuda.conv2d._shared_rows import best_plan
from kernelmux.backends.cuda.conv2d._walked import asks
from kernelmux.backends.cuda.conv2d_backward_input import _bf16x6, _patches, _phases, _strided
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Condition
from kernelmux.registry.spec.sliding_windows import Pair, windows
from kernelmux.registry.util.cards import Card, remembered
from kernelmux.registry.util.memory_format import format_of, fresh

SOURCE = Source(__file__)


@remembered
def problem(
    grad_out: Layout,
    weight: Layout,
    order: torch.memory_format,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    output_padding: Pair,
) -> Convolution:
    """The convolution of a call."""
    over = zip(windows(weight.shape, stride, padding, dilation), grad_out.shape[2:], output_padding, strict=True)
    h, w = (ConvolutionAxis(n, o.length(n, rest), *o) for o, n, rest in over)
    shape = grad_out.shape[0], weight.shape[1], h.positions, w.positions
    return Convolution(BACKWARD_INPUT, grad_out, swapped(weight), shape, order, h, w)


@remembered
def _direct(c: Convolution, card: Card) -> ConvolutionPlan:
    return direct(SOURCE, "conv2d_backward_input_direct", c)


def _variant(plan: Planner, idea: str, requires: tuple[Condition, ...], arithmetic: str) -> Implementation:
    def conv2d_backward_input(
        grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
    ) -> torch.Tensor:
        c = problem(layout(grad_out), layout(weight), format_of(grad_out), stride, padding, dilation, output_padding)
        return plan(c, card(grad_out)).run(grad_out, weight)

    return Implementation(conv2d_backward_input, idea, requires, arithmetic=arithmetic)


def bf16x6(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    c = problem(layout(grad_out), layout(weight), format_of(grad_out), stride, padding, dilation, output_padding)
    return _bf16x6.bf16x6(c, grad_out, weight)


def implicit_gemm_tma(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    c = problem(layout(grad_out), layout(weight), format_of(grad_out), stride, padding, dilation, output_padding)
    if 0 in c.shape:
        return fresh(grad_out.new_empty(c.shape), c.order)
    images, kernels = ready(grad_out, apart=spacing(len(weight), *weight.shape[2:])), ready(weight)
    lie = layout(images), layout(kernels)
    if stride != (1, 1):
        return result(_strided.best_plan(c.shape[1], *lie, c.h, c.w, multiprocessors(grad_out)).run(images, kernels), c)
    sides = backwards(c.h), backwards(c.w)
    ending = PLAIN.ending, multiprocessors(grad_out), c.contiguous, images is not grad_out or kernels is not weight
    made = best_plan(BACKWARD_INPUT, c.shape[1], *lie, *sides, *ending)
    return result(made.run(images, kernels, PLAIN), c)


def implicit_gemm_phases(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    c = problem(layout(grad_out), layout(weight), format_of(grad_out), stride, padding, dilation, output_padding)
    if 0 in c.shape:
        return fresh(grad_out.new_empty(c.shape), c.order)
    images = ready(grad_out)
    return _phases.implicit_gemm_phases(c._replace(image=layout(images)), multiprocessors(grad_out)).run(images, weight)


def patches(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    c = problem(layout(grad_out), layout(weight), format_of(grad_out), stride, padding, dilation, output_padding)
    return _patches.gradient(c, grad_out, weight, multiprocessors(grad_out))


def pointwise(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    return _pointwise.product(weight[:, :, 0, 0].t(), grad_out)


VARIANTS = {
    **ladder(_variant, _direct, "grad_out", "NHW", "ORS"),
    "bf16x6": Implementation(
        bf16x6, "six products of bf16 planes, which TMA gathers by im2col",
        asks_of_planes("grad_out", "NHW", "ORS", GRADIENTS, transposed=True), arithmetic="fp32_sequential",
        pays=(RepaysPlanesOfImages(BACKWARD_INPUT),),
    ),
    "implicit_gemm_tma": Implementation(
        implicit_gemm_tma, "TMA gathers by im2col and feeds wgmma",
        asks("grad_out", "NHW", "ORS", channels="OC", transposed=True), arithmetic="mma",
    ),
    "patches": Implementation(
        patches, "a product whose rows are windows that do not overlap",
        asks_of_patches("grad_out", FewOrCovered(), "NHW", "ORS"),
        arithmetic="mma",
    ),
    "pointwise": Implementation(
        pointwise, "a batch of products on contiguous images", _pointwise.asks("grad_out"), arithmetic="mma",
    ),
    "implicit_gemm_phases": Implementation(
        implicit_gemm_phases, "pixels of all phases side by side, grad_out is read once into shared memory",
        _phases.asks("grad_out", "NHW", "ORS"), arithmetic="mma",
    ),
}  # fmt: skip
