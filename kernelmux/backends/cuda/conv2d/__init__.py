"""conv2d on CUDA: from one thread per output to an implicit product on the tensor cores.

direct               one thread per output
tiled                patches and weights in shared memory, a product on the FP32 pipes
bf16x6               fp32 as three planes of bf16, whose six products wgmma computes; pixels by TMA
implicit_gemm        mma.sync on patches gathered by cp.async
implicit_gemm_wgmma  the next tiles are gathered while wgmma multiplies
implicit_gemm_folded the copy engine gathers from a copy in which the columns of a window are channels: for few channels
implicit_gemm_tma    the copy engine gathers, in its im2col mode; channels-last, other images are copied first
patches              windows that do not overlap are copied as rows of a matrix: for few channels, or contiguous images
pointwise            kernels of one element on contiguous images are a batch of products
implicit_gemm_rows   rows of the images stay in shared memory, and windows are read from there: for few channels

The others read images and weights where they lie, NCHW or channels-last, with any strides. The first takes every call.
"""

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import Source, card, multiprocessors
from kernelmux.backends.cuda.conv2d import _bf16x6, _folded, _image_rows, _patches, _pointwise
from kernelmux.backends.cuda.conv2d._im2col import ready, result, spacing
from kernelmux.backends.cuda.conv2d._plans import ConvolutionPlan, MoreThanFew, Planner, direct, ladder
from kernelmux.backends.cuda.conv2d._problem import CONV2D, Convolution, ConvolutionAxis
from kernelmux.backends.cuda.conv2d._shared_rows import best_plan
from kernelmux.backends.cuda.conv2d._walked import asks
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Condition
from kernelmux.registry.spec.sliding_windows import PIXELS, Pair, windows
from kernelmux.registry.util.cards import Card, remembered
from kernelmux.registry.util.memory_format import format_of, fresh

Maybe = torch.Tensor | None
SOURCE = Source(__file__)


@remembered
def problem(
    x: Layout, weight: Layout, order: torch.memory_format, stride: Pair, padding: Pair, dilation: Pair
) -> Convolution:
    """The convolution of a call."""
    over = windows(weight.shape, stride, padding, dilation)
    h, w = (ConvolutionAxis(n, o.places(n), *o) for o, n in zip(over, x.shape[2:], strict=True))
    return Convolution(CONV2D, x, weight, (x.shape[0], weight.shape[0], h.positions, w.positions), order, h, w)


@remembered
def _direct(c: Convolution, card: Card) -> ConvolutionPlan:
    return direct(SOURCE, "conv2d_direct", c)


def _variant(plan: Planner, idea: str, requires: tuple[Condition, ...], arithmetic: str) -> Implementation:
    def conv2d(
        x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
    ) -> torch.Tensor:
        c = problem(layout(x), layout(weight), format_of(x), stride, padding, dilation)
        return plan(c, card(x)).run(x, weight, bias)

    return Implementation(conv2d, idea, requires, {"bias": "contiguous"}, arithmetic=arithmetic)


def bf16x6(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    c = problem(layout(x), layout(weight), format_of(x), stride, padding, dilation)
    return _bf16x6.bf16x6(c, x, weight, bias)


def implicit_gemm_folded(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    c = problem(layout(x), layout(weight), format_of(x), stride, padding, dilation)
    if 0 in c.shape:
        return fresh(x.new_empty(c.shape), c.order)
    fold = _folded.fold_of(c.w, x.shape[1])
    images, kernels = _folded.lines_of(x, c.w, fold), _folded.lines_of_weight(weight, fold)
    epilogue = PLAIN if bias is None else Epilogue(EpilogueKind(bias=True), (bias, None))
    lie, axes = (images.layout, kernels.layout), (c.h, _folded.walk(c.w))
    ending = epilogue.ending, multiprocessors(x), c.contiguous, True
    made = best_plan(CONV2D, c.filters, *lie, *axes, *ending)
    return result(made.run(images.copy, kernels.copy, epilogue), c)


def implicit_gemm_tma(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    c = problem(layout(x), layout(weight), format_of(x), stride, padding, dilation)
    if 0 in c.shape:
        return fresh(x.new_empty(c.shape), c.order)
    images, kernels = ready(x, apart=spacing(*weight.shape[1:])), ready(weight)
    epilogue = PLAIN if bias is None else Epilogue(EpilogueKind(bias=True), (bias, None))
    lie = layout(images), layout(kernels)
    ending = epilogue.ending, multiprocessors(x), c.contiguous, images is not x or kernels is not weight
    made = best_plan(CONV2D, c.filters, *lie, c.h, c.w, *ending)
    return result(made.run(images, kernels, epilogue), c)


def patches(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    c = problem(layout(x), layout(weight), format_of(x), stride, padding, dilation)
    return _patches.forward(c, x, weight, PLAIN if bias is None else Epilogue(EpilogueKind(bias=True), (bias, None)))


def pointwise(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    return _pointwise.product(weight[:, :, 0, 0], x, bias)


VARIANTS = {
    **ladder(_variant, _direct, "x", "NPQ", "CRS", of_tiles=(MoreThanFew("NOPQ", "CRS"),)),
    "bf16x6": Implementation(
        bf16x6, "six products of bf16 planes, which TMA gathers by im2col", _bf16x6.asks("x", "NPQ", "CRS", _bf16x6.IMAGES),
        {"bias": "contiguous"}, arithmetic="fp32_sequential", pays=(_bf16x6.RepaysPlanesOfImages(),),
    ),
    "implicit_gemm_folded": Implementation(
        implicit_gemm_folded, "columns of a window become channels, then TMA and wgmma",
        (*_folded.asks("x", "NPQ", "CRS"), *PIXELS),
        {"bias": "contiguous"}, arithmetic="mma",
    ),
    "implicit_gemm_tma": Implementation(
        implicit_gemm_tma, "TMA gathers by im2col and feeds wgmma", (*asks("x", "NPQ", "CRS", channels="C"), *PIXELS),
        {"bias": "contiguous"}, arithmetic="mma",
    ),
    "patches": Implementation(
        patches, "windows that do not overlap are rows of a matrix",
        _patches.asks("x", _patches.FewOrContiguous("x"), "NPQ", "CRS"),
        {"bias": "contiguous"}, arithmetic="mma",
    ),
    "pointwise": Implementation(
        pointwise, "a batch of products on contiguous images",
        _pointwise.asks("x", _pointwise.RowsOfPixels("x", biased=True)), {"bias": "contiguous"}, arithmetic="mma",
    ),
    "implicit_gemm_rows": _variant(
        _image_rows.implicit_gemm_rows, "rows stay in shared memory, windows are read from there into wgmma",
        _image_rows.asks("x", "NPQ", "CRS"), "mma",
    ),
}  # fmt: skip
