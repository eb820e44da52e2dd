"""Gradient of kernels whose sum over places is divided among blocks."""

from pathlib import Path

import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost
from kernelmux.registry.spec.sliding_windows import Pair
from kernelmux.registry.util.memory_format import format_of

SOURCE = Path(__file__).with_suffix(".cu")


def atomic_parts(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    (n, o, p, q), c, order = grad_out.shape, x.shape[1], format_of(x)
    grad_out, x = grad_out.contiguous(), x.contiguous()
    total = torch.zeros(o, c, *kernel, device=x.device, dtype=torch.float32)
    if grad_out.numel() and x.numel():
        sizes = [*x.shape, o, *kernel, p, q, *stride, *padding, *dilation]
        there = torch.tensor(sizes, dtype=torch.int32, device=x.device)
        grid = (-(-total.numel() // 64), -(-n * p * q // 16))
        launch(SOURCE, "atomic_parts", grid, 64, (grad_out, x, total, there), x.dtype)
    return total.to(x.dtype).contiguous(memory_format=order)


VARIANTS = {
    "atomic_parts": Implementation(
        fn=atomic_parts,
        idea="parts of the sum are added as they come",
        arithmetic="fp32_sequential",
        requires=(AtMost("K", 2**20),),
    ),
}

CAUGHT_BY = {"atomic_parts": "repeatability"}
