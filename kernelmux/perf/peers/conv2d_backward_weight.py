"""Gradient of a convolution with respect to its kernels in other libraries: cuDNN through torch."""

import torch

from kernelmux.perf.peers._convolution import backward, benchmarked
from kernelmux.perf.peers._libraries import compiled, through_torch
from kernelmux.registry.conditions import Dtypes
from kernelmux.registry.spec.sliding_windows import Pair
from kernelmux.registry.util.memory_format import format_of

HALVES = Dtypes("x", torch.float16, torch.bfloat16)  # in fp32 torch lets cuDNN round to tf32


def with_torch(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    shape = (grad_out.shape[1], x.shape[1], *kernel)
    weight = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=format_of(x))
    return backward(grad_out, x, weight, stride, padding, dilation, "weight")


VARIANTS = {
    "cudnn": through_torch(
        "cuDNN, benchmarked", benchmarked()(with_torch), HALVES, arithmetic="mma", deterministic=False
    ),
    "torch_compile": compiled(with_torch, HALVES, arithmetic="mma", deterministic=False),
}
