"""Rows in 8 bits, broken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from kernelmux.registry import dtypes
from kernelmux.registry.backend import Implementation

Pair = tuple[torch.Tensor, torch.Tensor]


def quantized(
    x: torch.Tensor,
    format: str,
    lowest: float = -128.0,
    rounds: Callable[[torch.Tensor], torch.Tensor] = torch.round,
    axes: tuple[int, ...] = (1,),
    zero: bool = True,
) -> Pair:
    """What is right, but for what the arguments say. axes: that share a scale; zero: a row of zeros has q 0."""
    x, dtype = x.contiguous().float(), dtypes.parse(format)
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    top = x.abs().amax(axes, keepdim=True) if x.numel() else x.new_zeros(len(x), 1)
    scale = (top / info.max).expand(len(x), 1)
    quotient = torch.where(scale == 0, 0, x / scale) if zero else x / scale
    if dtype.is_floating_point:
        q = quotient.clamp(-info.max, info.max).to(dtype)
    else:
        q = rounds(quotient).clamp(lowest, 127).nan_to_num(nan=0).to(dtype)
    return q.contiguous(), scale[:, 0].contiguous()


def half_up(x: torch.Tensor) -> torch.Tensor:
    return torch.floor(x + 0.5)


def through_bf16(x: torch.Tensor, format: str) -> Pair:
    """8-bit floats rounded twice: to bf16 on the way."""
    q, scale = quantized(x, format)
    if q.dtype == torch.int8 or not x.numel():
        return q, scale
    largest = torch.finfo(q.dtype).max
    quotient = torch.where(scale[:, None] == 0, 0, x.float() / scale[:, None]).clamp(-largest, largest)
    return quotient.to(torch.bfloat16).to(q.dtype).contiguous(), scale


def by_reciprocal(x: torch.Tensor, format: str) -> Pair:
    """Multiplies by 1 / scale, which overflows for the smallest scales."""
    q, scale = quantized(x, format)
    if q.dtype.is_floating_point or not x.numel():
        return q, scale
    made = torch.where(scale[:, None] == 0, 0, x.float() * (1 / scale[:, None]))
    return made.round().clamp(-128, 127).nan_to_num(nan=0).to(torch.int8).contiguous(), scale


VARIANTS = {
    "sound": Implementation(fn=quantized, idea="nothing is wrong with it"),
    "half_up": Implementation(fn=partial(quantized, rounds=half_up), idea="rounds ties up"),
    "saturated_at_minus_127": Implementation(fn=partial(quantized, lowest=-127.0), idea="never gives -128"),
    "one_scale": Implementation(fn=partial(quantized, axes=(0, 1)), idea="takes one scale for all rows"),
    "zero_by_zero": Implementation(fn=partial(quantized, zero=False), idea="divides a row of zeros by its scale"),
    "through_bf16": Implementation(fn=through_bf16, idea="rounds to bf16 before it rounds to fp8"),
    "by_reciprocal": Implementation(fn=by_reciprocal, idea="multiplies by a rounded reciprocal"),
}

CAUGHT_BY = {
    "half_up": "exact",
    "saturated_at_minus_127": "accuracy",
    "one_scale": "accuracy",
    "zero_by_zero": "accuracy",
    "through_bf16": "exact",
    "by_reciprocal": "accuracy",
}
