"""Gradient of a convolution with respect to its images in other libraries: cuDNN through torch."""

import torch

from kernelmux.perf.peers._convolution import backward, benchmarked
from kernelmux.perf.peers._libraries import compiled, through_torch
from kernelmux.registry.conditions import Dtypes
from kernelmux.registry.spec.sliding_windows import Pair, windows
from kernelmux.registry.util.memory_format import format_of

HALVES = Dtypes("grad_out", torch.float16, torch.bfloat16)  # in fp32 torch lets cuDNN round to tf32


def with_torch(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    over = windows(weight.shape, stride, padding, dilation)
    lengths = (o.length(n, rest) for o, n, rest in zip(over, grad_out.shape[2:], output_padding, strict=True))
    shape, form = (len(grad_out), weight.shape[1], *lengths), format_of(grad_out)
    x = torch.empty(shape, dtype=grad_out.dtype, device=grad_out.device, memory_format=form)
    return backward(grad_out, x, weight, stride, padding, dilation, "x")


VARIANTS = {
    "cudnn": through_torch(
        "cuDNN, benchmarked", benchmarked()(with_torch), HALVES, arithmetic="mma", deterministic=False
    ),
    "torch_compile": compiled(with_torch, HALVES, arithmetic="mma", deterministic=False),
}
