"""conv2d_backward_input: a transposed convolution, by the kernel of the convolution itself.

Elements of images that lie `stride` apart meet the same elements of a kernel, so that each such set is a convolution
without a stride, and nothing is multiplied by the zeros between places.
"""

from __future__ import annotations

import torch

from kernelmux.backends.triton._launch.card import TensorCores
from kernelmux.backends.triton.conv2d import _pointwise, _specialised, _sums
from kernelmux.backends.triton.conv2d._implicit_gemm import implicit_gemm
from kernelmux.backends.triton.conv2d._problem import ConvolutionProblem, images
from kernelmux.backends.triton.conv2d_backward_input import _phases, _squares
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Pair, windows
from kernelmux.registry.util.memory_format import format_of


def conv2d_backward_input(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    over = windows(weight.shape, stride, padding, dilation)
    lengths = (o.length(n, r) for o, n, r in zip(over, grad_out.shape[2:], output_padding, strict=True))
    shape = (len(grad_out), weight.shape[1], *lengths)
    grad_x = torch.empty(shape, dtype=weight.dtype, device=weight.device, memory_format=format_of(grad_out))
    if grad_x.numel():
        tensors = images(grad_out), images(grad_x), images(weight.transpose(0, 1))
        launch = implicit_gemm(
            ConvolutionProblem(grad_out.get_device(), grad_out.dtype, *tensors, over), transposed=True
        )
        launch(grad_x, grad_out, weight, grad_x)
    return grad_x


def specialised(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    over = windows(weight.shape, stride, padding, dilation)
    lengths = (o.length(n, r) for o, n, r in zip(over, grad_out.shape[2:], output_padding, strict=True))
    shape = (len(grad_out), weight.shape[1], *lengths)
    if _squares.fewer(shape[1], over):
        return _squares.gradient(grad_out, weight, shape, over)
    if any(o.stride > 1 for o in over):
        return _phases.gradient(grad_out, weight, shape, over)
    return _specialised.convolution(grad_out, weight, None, shape, over, transposed=True)


def sums(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    """A convolution of grad_out by the kernels turned by half a turn, which are copied."""
    turned = (w._replace(padding=w.reach - 1 - w.padding) for w in windows(weight.shape, stride, padding, dilation))
    over = tuple(turned)
    lengths = (o.places(n) for o, n in zip(over, grad_out.shape[2:], strict=True))
    form, shape = format_of(grad_out), (len(grad_out), weight.shape[1], *lengths)
    grad_x = torch.empty(shape, dtype=weight.dtype, device=weight.device, memory_format=form)
    order = torch.channels_last if images(grad_out).channels_last else torch.contiguous_format
    kernels = weight.transpose(0, 1).flip(2, 3).contiguous(memory_format=order)
    tensors = images(grad_out), images(grad_x), images(kernels)
    p = ConvolutionProblem(grad_out.get_device(), grad_out.dtype, *tensors, (over[0], over[1]))
    _sums.convolution(p, grad_x, grad_out, kernels, None)
    return grad_x


def pointwise(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    return _pointwise.product(weight[:, :, 0, 0].t(), grad_out)


VARIANTS = {
    "implicit_gemm": Implementation(
        conv2d_backward_input, "for each residue of the stride a product on tensor cores", (TensorCores("grad_out"),),
        arithmetic="mma",
    ),
    "sums": Implementation(
        sums, "a convolution by turned kernels, fp32 patches by asynchronous copies", _sums.requires_of_gradient(),
        arithmetic="fp32_sequential",
    ),
    "specialised": Implementation(
        specialised, "boxes of grad_out by TMA, two warpgroups multiply; what is not channels-last is copied",
        _specialised.requires("grad_out", _phases.FewPhases(), read="O"), arithmetic="mma",
    ),
    "pointwise": Implementation(
        pointwise, "a batch of products on contiguous images", _pointwise.requires("grad_out"), arithmetic="mma",
    ),
}  # fmt: skip
