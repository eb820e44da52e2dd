"""Convolution in other libraries: cuDNN, through torch and through its own frontend, with the fastest of its algorithms.

The frontend adds a bias within the plan, torch in a kernel behind it.
"""

from typing import Any

import torch
import torch.nn.functional as F

from kernelmux.perf.peers import _cudnn_frontend
from kernelmux.perf.peers._libraries import compiled, library, through_torch
from kernelmux.registry.conditions import Dtypes
from kernelmux.registry.spec.sliding_windows import Pair, windows
from kernelmux.registry.util.memory_format import format_of

Maybe = torch.Tensor | None
FLAGS = (True, False, True, False)  # benchmark, deterministic, cuDNN, tf32


def with_cudnn(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    around = (stride, padding, dilation, False, (0, 0), 1)  # not transposed, no output padding, one group
    y: torch.Tensor = torch.ops.aten._convolution(x, weight, bias, *around, *FLAGS)
    return y.contiguous(memory_format=format_of(x))


def with_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    return F.conv2d(x, weight, bias, stride, padding, dilation)


def _plain(graph: Any, x: Any, weight: Any, *around: Pair) -> Any:
    return (graph.conv_fprop(image=x, weight=weight, **_cudnn_frontend.around(*around)),)


def _biased(graph: Any, x: Any, weight: Any, bias: Any, *around: Pair) -> Any:
    return (graph.bias(input=_plain(graph, x, weight, *around)[0], bias=bias),)


def with_cudnn_frontend(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    places = (o.places(n) for o, n in zip(windows(weight.shape, stride, padding, dilation), x.shape[2:], strict=True))
    shape = (len(x), len(weight), *places)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=format_of(x))
    given = (x, weight) if bias is None else (x, weight, bias.view(1, -1, 1, 1))
    _cudnn_frontend.compute((_plain if bias is None else _biased,), given, (y,), stride, padding, dilation)
    return y


VARIANTS = {
    "cudnn": through_torch("cuDNN, benchmarked", with_cudnn, arithmetic="mma"),
    "cudnn_frontend": library("cudnn", with_cudnn_frontend, arithmetic="mma"),
    "torch_compile": compiled(with_torch, Dtypes("x", torch.float16, torch.bfloat16), arithmetic="mma"),
}
