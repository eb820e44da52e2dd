"""Gradient of a convolution with respect to its kernels in other libraries: cuDNN, through torch and its own frontend."""

from typing import Any

import torch

from kernelmux.perf.peers import _cudnn_frontend
from kernelmux.perf.peers._convolution import backward, benchmarked
from kernelmux.perf.peers._libraries import compiled, library, through_torch
from kernelmux.registry.conditions import Dtypes
from kernelmux.registry.spec.sliding_windows import Pair
from kernelmux.registry.util.memory_format import format_of

HALVES = Dtypes("x", torch.float16, torch.bfloat16)  # in fp32 torch lets cuDNN round to tf32


def _kernels(grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair) -> torch.Tensor:
    """A new tensor for the result."""
    shape = (grad_out.shape[1], x.shape[1], *kernel)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=format_of(x))


def with_torch(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    return backward(grad_out, x, _kernels(grad_out, x, kernel), stride, padding, dilation, "weight")


def _wgrad(graph: Any, grad_out: Any, x: Any, *around: Pair) -> Any:
    return (graph.conv_wgrad(image=x, loss=grad_out, **_cudnn_frontend.around(*around)),)


def with_cudnn_frontend(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    weight = _kernels(grad_out, x, kernel)
    _cudnn_frontend.compute((_wgrad,), (grad_out, x), (weight,), stride, padding, dilation)
    return weight


VARIANTS = {
    "cudnn": through_torch(
        "cuDNN, benchmarked", benchmarked()(with_torch), HALVES, arithmetic="mma", deterministic=False
    ),
    "cudnn_frontend": library("cudnn", with_cudnn_frontend, arithmetic="mma", deterministic=False),
    "torch_compile": compiled(with_torch, HALVES, arithmetic="mma", deterministic=False),
}
