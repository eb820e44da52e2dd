"""Convolution in Triton, broken at the borders of images."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernelmux.conformance.mutants._triton import BLOCK, launch
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Pair, windows
from kernelmux.registry.util.memory_format import format_of

Maybe = torch.Tensor | None


def _with(defect: str) -> Callable[..., torch.Tensor]:
    def conv2d(
        x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
    ) -> torch.Tensor:
        from kernelmux.conformance.mutants.edges import _convolutions

        over = windows(weight.shape, stride, padding, dilation)
        places = [o.places(n) for o, n in zip(over, x.shape[2:], strict=True)]
        y = x.new_empty(len(x), len(weight), *places)
        if y.numel():
            tensors = y, x.contiguous(), weight.contiguous(), y if bias is None else bias.contiguous()
            sizes = len(weight), *x.shape[1:], *places, *weight.shape[2:], y.numel(), *stride, *padding, *dilation
            meta = {"DEFECT": defect, "BIAS": bias is not None, "BLOCK": BLOCK}
            launch(_convolutions.conv2d, -(-y.numel() // BLOCK), *tensors, *sizes, **meta)
        return y.contiguous(memory_format=format_of(x))

    return conv2d


VARIANTS = {
    "column_before": Implementation(_with("column_before"), "takes the end of the row before for the column before"),
    "nearest": Implementation(_with("nearest"), "pads with the element at the border", arithmetic="fp32_sequential"),
    "first_row": Implementation(_with("first_row"), "takes the first row for padding", arithmetic="fp32_sequential"),
    "bias_twice": Implementation(_with("bias_twice"), "adds the bias twice", arithmetic="fp32_sequential"),
}

CAUGHT_BY = {name: "accuracy" for name in VARIANTS}
