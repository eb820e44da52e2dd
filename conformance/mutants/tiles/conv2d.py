"""Convolution of images, broken in kernels that keep weights in shared memory."""

from pathlib import Path

import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost
from kernelmux.registry.spec.sliding_windows import Pair, windows
from kernelmux.registry.util.memory_format import format_of

SOURCE = Path(__file__).with_suffix(".cu")
Maybe = torch.Tensor | None


def _launch(
    entry: str, x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    order, x, weight = format_of(x), x.contiguous(), weight.contiguous()
    over = windows(weight.shape, stride, padding, dilation)
    p, q = (o.places(n) for o, n in zip(over, x.shape[2:], strict=True))
    y = torch.empty(len(x), len(weight), p, q, dtype=x.dtype, device=x.device)
    if y.numel():
        sizes = [*x.shape, len(weight), *weight.shape[2:], p, q, *stride, *padding, *dilation, bias is not None]
        there = torch.tensor(sizes, dtype=torch.int32, device=x.device)
        given = x if bias is None else bias  # a launch of these takes no null
        launch(SOURCE, entry, (-(-len(x) * p * q // 64), len(weight)), 64, (x, weight, given, y, there), x.dtype)
    return y.contiguous(memory_format=order)


def _kernel(name: str, idea: str) -> Implementation:
    def conv2d(
        x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
    ) -> torch.Tensor:
        return _launch(f"conv2d_{name}", x, weight, bias, stride, padding, dilation)

    return Implementation(conv2d, idea, (AtMost("O", 65535),), {"bias": "contiguous"}, "fp32_sequential")


VARIANTS = {
    "sound": _kernel("sound", "nothing is wrong with it"),
    "beyond_the_border": _kernel("beyond_the_border", "takes one column more, the first of the row that follows"),
    "no_dilation": _kernel("no_dilation", "elements of a kernel are neighbours, whatever the dilation"),
    "padded_with_ones": _kernel("padded_with_ones", "reads ones around the images"),
    "bias_twice": _kernel("bias_twice", "adds the bias twice"),
    "no_barrier": _kernel("no_barrier", "reads weights of a tile that may not have come"),
    "last_block_dropped": _kernel("last_block_dropped", "leaves out the last incomplete block of terms"),
}

CAUGHT_BY = {name: "accuracy" for name in VARIANTS if name != "sound"}
ONLY_CPU = {"no_barrier"}  # a GPU may well give the right sums
