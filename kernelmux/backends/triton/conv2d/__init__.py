"""conv2d: y[n, o, p, q] = bias[o] + sum over c, r, s of weight[o, c, r, s] * x[n, c, h, w], accumulated in fp32.

direct         a tile of places and channels per program, one term after the other
implicit_gemm  a product of matrices on tensor cores, whose right factor is found in x while it is loaded
sums           fp32 on the FP32 pipes, patches found while asynchronous copies bring them; programs share terms
folded         specialised on a copy in which the columns of a window are channels: for few channels
specialised    the same product: one warp brings boxes of x by the copy engine (TMA), two warpgroups multiply
pointwise      kernels of one element on contiguous images: products of matrices where these lie
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernelmux.backends.triton._launch.card import TensorCores
from kernelmux.backends.triton._launch.launch import Launch
from kernelmux.backends.triton.conv2d import _folded, _order, _patches, _pointwise, _specialised, _sums, _uneven
from kernelmux.backends.triton.conv2d._direct import direct
from kernelmux.backends.triton.conv2d._implicit_gemm import SPACE, implicit_gemm
from kernelmux.backends.triton.conv2d._problem import ConvolutionProblem, images
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend.search_space import Space
from kernelmux.registry.conditions import Condition
from kernelmux.registry.spec.sliding_windows import PIXELS, Pair, windows
from kernelmux.registry.util.memory_format import format_of

Maybe = torch.Tensor | None


def _variant(
    make: Callable[[ConvolutionProblem], Launch], idea: str, arithmetic: str, requires: tuple[Condition, ...] = (),
    space: Space | None = None,
) -> Implementation:  # fmt: skip
    def conv2d(
        x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
    ) -> torch.Tensor:
        over = windows(weight.shape, stride, padding, dilation)
        places = (o.places(n) for o, n in zip(over, x.shape[2:], strict=True))
        shape = (len(x), len(weight), *places)
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=format_of(x))
        if y.numel():
            sizes = images(x), images(y), images(weight)
            make(ConvolutionProblem(x.get_device(), x.dtype, *sizes, over, bias is not None))(
                y, x, weight, y if bias is None else bias
            )
        return y

    return Implementation(conv2d, idea, requires, {"bias": "contiguous"}, arithmetic, space=space)


def sums(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    over = windows(weight.shape, stride, padding, dilation)
    places = (o.places(n) for o, n in zip(over, x.shape[2:], strict=True))
    y = torch.empty((len(x), len(weight), *places), dtype=x.dtype, device=x.device, memory_format=format_of(x))
    sizes = images(x), images(y), images(weight)
    _sums.convolution(ConvolutionProblem(x.get_device(), x.dtype, *sizes, over, bias is not None), y, x, weight, bias)
    return y


def _by_boxes(convolution: Callable[..., torch.Tensor], idea: str, requires: tuple[Condition, ...]) -> Implementation:
    def conv2d(
        x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
    ) -> torch.Tensor:
        over = windows(weight.shape, stride, padding, dilation)
        places = (o.places(n) for o, n in zip(over, x.shape[2:], strict=True))
        return convolution(x, weight, bias, (len(x), len(weight), *places), over)

    return Implementation(conv2d, idea, requires, {"bias": "contiguous"}, "mma")


def pointwise(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    return _pointwise.convolution(x, weight, bias)


VARIANTS = {
    "direct": _variant(direct, "a tile of places per program, term by term", "fp32_sequential"),
    "implicit_gemm": _variant(
        implicit_gemm, "a product of matrices on tensor cores", "mma", (TensorCores("x"),), SPACE
    ),
    "sums": Implementation(
        sums, "fp32 patches by asynchronous copies, programs share terms", _sums.requires(), {"bias": "contiguous"},
        arithmetic="fp32_sequential",
    ),
    "folded": _by_boxes(
        _folded.convolution, "columns of a window become channels, then as specialised", _folded.requires("x")
    ),
    "specialised": _by_boxes(
        _uneven.convolution, "boxes of x by TMA, two warpgroups multiply; what is not channels-last is copied",
        _specialised.requires("x", *PIXELS, _specialised.Phases(_order.SECTOR), read="C"),
    ),
    "patches": _by_boxes(
        _patches.convolution, "windows that do not overlap are rows of a matrix",
        _patches.requires("x", _patches.FewChannelsOrContiguous("x")),
    ),
    "pointwise": Implementation(
        pointwise, "a batch of products on contiguous images", _pointwise.requires("x"), {"bias": "contiguous"}, "mma"
    ),
}  # fmt: skip
