"""Gradient of a convolution with respect to its images in other libraries: cuDNN, through torch and its own frontend."""

from typing import Any

import torch

from kernelmux.perf.peers import _cudnn_frontend
from kernelmux.perf.peers._convolution import backward, benchmarked
from kernelmux.perf.peers._libraries import compiled, library, through_torch
from kernelmux.registry.conditions import Dtypes
from kernelmux.registry.spec.sliding_windows import Pair, windows
from kernelmux.registry.util.memory_format import format_of

HALVES = Dtypes("grad_out", torch.float16, torch.bfloat16)  # in fp32 torch lets cuDNN round to tf32


def _images(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    """A new tensor for the result."""
    over = windows(weight.shape, stride, padding, dilation)
    lengths = (o.length(n, rest) for o, n, rest in zip(over, grad_out.shape[2:], output_padding, strict=True))
    shape, form = (len(grad_out), weight.shape[1], *lengths), format_of(grad_out)
    return torch.empty(shape, dtype=grad_out.dtype, device=grad_out.device, memory_format=form)


def with_torch(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    x = _images(grad_out, weight, stride, padding, dilation, output_padding)
    return backward(grad_out, x, weight, stride, padding, dilation, "x")


def _dgrad(graph: Any, grad_out: Any, weight: Any, *around: Pair) -> Any:
    return (graph.conv_dgrad(loss=grad_out, filter=weight, **_cudnn_frontend.around(*around)),)


def with_cudnn_frontend(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    x = _images(grad_out, weight, stride, padding, dilation, output_padding)
    _cudnn_frontend.compute((_dgrad,), (grad_out, weight), (x,), stride, padding, dilation)
    return x


VARIANTS = {
    "cudnn": through_torch(
        "cuDNN, benchmarked", benchmarked()(with_torch), HALVES, arithmetic="mma", deterministic=False
    ),
    "cudnn_frontend": library("cudnn", with_cudnn_frontend, arithmetic="mma", deterministic=False),
    "torch_compile": compiled(with_torch, HALVES, arithmetic="mma", deterministic=False),
}
