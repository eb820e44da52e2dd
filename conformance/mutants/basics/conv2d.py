"""Convolution, broken."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernelmux.registry.backend import Implementation
from kernelmux.registry.ops.conv2d import reference
from kernelmux.registry.util.memory_format import format_of

Maybe = torch.Tensor | None
Pair = tuple[int, int]
CHANNELS = 16  # of a step of a kernel


def sums(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    return reference(x.double(), weight.double(), None if bias is None else bias.double(), *along)


def ended(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sums in the dtype and the order of x."""
    return y.to(x.dtype).contiguous(memory_format=format_of(x))


def sound(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    return ended(sums(x, weight, bias, *along), x)


def last_row_is_padding(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    images = x.clone()
    if padding[0]:
        images[:, :, -1] = 0
    return ended(sums(images, weight, bias, stride, padding, dilation), x)


def dilation_ignored(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    whole = sums(x, weight, bias, stride, padding, dilation)
    near = sums(x, weight, bias, stride, padding, (1, 1))
    return ended(near[:, :, : whole.shape[2], : whole.shape[3]], x)


def padding_of_one(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    """Whatever padding is given, the images begin at 1."""
    h, w = (min(n, 1) for n in padding)
    images = F.pad(x, (w, 2 * padding[1] - w, h, 2 * padding[0] - h))
    return ended(sums(images, weight, bias, stride, (0, 0), dilation), x)


def stride_of_rows(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    whole = sums(x, weight, bias, stride, padding, dilation)
    found = sums(x, weight, bias, (stride[0], stride[0]), padding, dilation)
    return ended(F.pad(found, (0, whole.shape[3] - found.shape[3])), x)


def bias_rounded_before(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    """Sums in the dtype of the result, and the bias added to those."""
    y = sums(x, weight, None, *along).to(x.dtype)
    return ended(y if bias is None else y + bias[:, None, None], x)


def bias_twice(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    return ended(sums(x, weight, None if bias is None else 2 * bias, *along), x)


def channels_beyond_a_step(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    kept = x.shape[1] // CHANNELS * CHANNELS or x.shape[1]
    return ended(sums(x[:, :kept], weight[:, :kept], bias, *along), x)


def channels_beyond_many(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    """As `channels_beyond_a_step`, only of sums of more than 1024 terms, which have a loop of their own."""
    many = weight.shape[1:].numel() > 1024
    return (channels_beyond_a_step if many else sound)(x, weight, bias, *along)


def channels_first(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    """Takes channels-last images for contiguous ones."""
    found = x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride()) if _last(x) else x
    return ended(sums(found, weight, bias, *along), x)


def always_contiguous(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    """Of channels-last images a result in the other order."""
    return sums(x, weight, bias, *along).to(x.dtype).contiguous()


def _last(x: torch.Tensor) -> bool:
    return format_of(x) == torch.channels_last


def _variant(fn: Callable[..., torch.Tensor], idea: str) -> Implementation:
    """With the arguments by the names of the spec."""

    def conv2d(
        x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
    ) -> torch.Tensor:
        return fn(x, weight, bias, stride, padding, dilation)

    return Implementation(conv2d, idea)


VARIANTS = {
    "sound": _variant(sound, "nothing is wrong with it"),
    "last_row_is_padding": _variant(last_row_is_padding, "takes the last row for padding, where there is some"),
    "dilation_ignored": _variant(dilation_ignored, "has no dilation"),
    "padding_of_one": _variant(padding_of_one, "takes every padding for 1"),
    "stride_of_rows": _variant(stride_of_rows, "takes the stride of the rows for both axes"),
    "bias_rounded_before": _variant(bias_rounded_before, "rounds before it adds the bias"),
    "bias_twice": _variant(bias_twice, "adds the bias twice"),
    "channels_beyond_a_step": _variant(channels_beyond_a_step, "leaves out channels beyond the last whole step"),
    "channels_beyond_many": _variant(channels_beyond_many, "leaves out such channels of long sums only"),
    "channels_first": _variant(channels_first, "reads channels-last images as contiguous ones"),
    "always_contiguous": _variant(always_contiguous, "gives channels-last images a contiguous result"),
}

CAUGHT_BY = {name: "accuracy" for name in VARIANTS if name != "sound"} | {
    "channels_first": "layout", "always_contiguous": "layout",
}  # fmt: skip
