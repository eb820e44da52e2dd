"""conv2d_backward_weight on CUDA: few sums, each over all positions, so the product's K is split over blocks.

direct               one thread per element of the weight
tiled                grad_out and patches in shared memory, a product on the FP32 pipes
bf16x6               fp32 as three planes of bf16, whose six products wgmma computes; pixels by TMA
implicit_gemm        mma.sync on grad_out and patches gathered by cp.async
implicit_gemm_wgmma  the next tiles are gathered while wgmma multiplies
implicit_gemm_folded the copy engine gathers from a copy in which the columns of a window are channels: for few channels
implicit_gemm_tma    the copy engine gathers, in its im2col mode; channels-last, other images are copied first
pointwise            kernels of one element, contiguous images: rows of pixels are read where they lie

All but the first write partial sums and add them in order: the same call gives the same bits.
"""

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import Source, card, multiprocessors
from kernelmux.backends.cuda.conv2d import _bf16x6_positions, _folded, _pointwise
from kernelmux.backends.cuda.conv2d._bf16x6 import GRADIENTS, IMAGES, RepaysPlanesOfImages
from kernelmux.backends.cuda.conv2d._bf16x6 import asks as asks_of_planes
from kernelmux.backends.cuda.conv2d._im2col import best_plan, ready, result, spacing
from kernelmux.backends.cuda.conv2d._plans import ConvolutionPlan, Planner, direct, ladder
from kernelmux.backends.cuda.conv2d._problem import BACKWARD_WEIGHT, Convolution, ConvolutionAxis
from kernelmux.backends.cuda.conv2d._walked import asks
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Condition
from kernelmux.registry.spec.sliding_windows import Pair, windows
from kernelmux.registry.util.cards import Card, remembered
from kernelmux.registry.util.memory_format import format_of, fresh

SOURCE = Source(__file__)


@remembered
def problem(
    grad_out: Layout, x: Layout, order: torch.memory_format, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Convolution:
    """The convolution of a call."""
    over = zip(windows(kernel, stride, padding, dilation), x.shape[2:], grad_out.shape[2:], strict=True)
    h, w = (ConvolutionAxis(size, count, *o) for o, size, count in over)
    return Convolution(BACKWARD_WEIGHT, x, grad_out, (grad_out.shape[1], x.shape[1], *kernel), order, h, w)


@remembered
def _direct(c: Convolution, card: Card) -> ConvolutionPlan:
    return direct(SOURCE, "conv2d_backward_weight_direct", c)


def _variant(plan: Planner, idea: str, requires: tuple[Condition, ...], arithmetic: str) -> Implementation:
    def conv2d_backward_weight(
        grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
    ) -> torch.Tensor:
        c = problem(layout(grad_out), layout(x), format_of(x), kernel, stride, padding, dilation)
        return plan(c, card(grad_out)).run(grad_out, x)

    return Implementation(conv2d_backward_weight, idea, requires, arithmetic=arithmetic)


def bf16x6(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    c = problem(layout(grad_out), layout(x), format_of(x), kernel, stride, padding, dilation)
    return _bf16x6_positions.bf16x6(c, grad_out, x)


def implicit_gemm_folded(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    c = problem(layout(grad_out), layout(x), format_of(x), kernel, stride, padding, dilation)
    if grad_out.numel() == 0 or x.numel() == 0:
        return fresh(x.new_zeros(c.shape), c.order)
    places = ready(grad_out, dense=True)
    fold = _folded.fold_of(c.w, x.shape[1])
    images, axes = _folded.lines_of(x, c.w, fold), (c.h, _folded.walk(c.w))
    lie = layout(places), images.layout
    made = best_plan(BACKWARD_WEIGHT, c.shape[0], *lie, *axes, PLAIN.ending, multiprocessors(x), after=True)
    return _folded.unfolded(made.run(places, images.copy, PLAIN), fold, c)


def implicit_gemm_tma(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    c = problem(layout(grad_out), layout(x), format_of(x), kernel, stride, padding, dilation)
    if grad_out.numel() == 0 or x.numel() == 0:
        return fresh(x.new_zeros(c.shape), c.order)
    places, images = ready(grad_out, dense=True), ready(x, apart=spacing(x.shape[1], *kernel))
    lie = layout(places), layout(images)
    after = places is not grad_out or images is not x
    made = best_plan(BACKWARD_WEIGHT, c.shape[0], *lie, c.h, c.w, PLAIN.ending, multiprocessors(x), after=after)
    return result(made.run(places, images, PLAIN), c)


def pointwise(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    made = _pointwise.best_plan(layout(grad_out), layout(x), PLAIN.ending, multiprocessors(x))
    return fresh(made.run(grad_out, x, PLAIN), format_of(x))


VARIANTS = {
    **ladder(_variant, _direct, "grad_out", "NPQ", "CRS"),
    "bf16x6": Implementation(
        bf16x6, "six products of bf16 planes, which TMA gathers by im2col",
        asks_of_planes("grad_out", "NPQ", "CRS", IMAGES, GRADIENTS), arithmetic="fp32_sequential",
        pays=(RepaysPlanesOfImages(BACKWARD_WEIGHT),),
    ),
    "implicit_gemm_folded": Implementation(
        implicit_gemm_folded, "columns of a window become channels, then TMA and wgmma",
        _folded.asks("grad_out", "NPQ", "CRS", channels="O"), arithmetic="mma",
    ),
    "implicit_gemm_tma": Implementation(
        implicit_gemm_tma, "TMA gathers by im2col and feeds wgmma",
        asks("grad_out", "NPQ", "CRS", channels="OC"), arithmetic="mma",
    ),
    "pointwise": Implementation(
        pointwise, "rows of pixels of contiguous images, summed over where they lie",
        _pointwise.asks_of_rows("grad_out", "x"), arithmetic="mma",
    ),
}  # fmt: skip
