"""Convolution in other libraries: cuDNN through torch, with the fastest of its algorithms for each shape."""

import torch
import torch.nn.functional as F

from kernelmux.perf.peers._libraries import compiled, through_torch
from kernelmux.registry.conditions import Dtypes
from kernelmux.registry.spec.sliding_windows import Pair
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


VARIANTS = {
    "cudnn": through_torch("cuDNN, benchmarked", with_cudnn, arithmetic="mma"),
    "torch_compile": compiled(with_torch, Dtypes("x", torch.float16, torch.bfloat16), arithmetic="mma"),
}
