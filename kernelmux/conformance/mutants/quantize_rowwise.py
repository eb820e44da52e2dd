"""quantize_rowwise, broken."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.registry import dtypes

mutant = Mutants("quantize_rowwise")


# basics: Rows in 8 bits, broken.

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
    scale = (top / torch.full_like(top, info.max)).expand(len(x), 1)  # a GPU multiplies by 1 / a number
    quotient = torch.where(scale == 0, 0, x / scale) if zero else x / scale
    if dtype.is_floating_point:
        q = quotient.clamp(-info.max, info.max).to(dtype)
    else:
        q = rounds(quotient).clamp(lowest, 127).nan_to_num(nan=0).to(dtype)
    return q.contiguous(), scale[:, 0].contiguous()


@mutant("nothing is wrong with it", family="basics")
def sound(x: torch.Tensor, format: str) -> Pair:
    return quantized(x, format)


@mutant("rounds ties up", family="basics", caught_by="exact")
def half_up(x: torch.Tensor, format: str) -> Pair:
    return quantized(x, format, rounds=lambda quotient: torch.floor(quotient + 0.5))


@mutant("never gives -128", family="basics", caught_by="exact")
def saturated_at_minus_127(x: torch.Tensor, format: str) -> Pair:
    return quantized(x, format, lowest=-127.0)


@mutant("takes one scale for all rows", family="basics", caught_by="accuracy")
def one_scale(x: torch.Tensor, format: str) -> Pair:
    return quantized(x, format, axes=(0, 1))


@mutant("divides a row of zeros by its scale", family="basics", caught_by="accuracy")
def zero_by_zero(x: torch.Tensor, format: str) -> Pair:
    return quantized(x, format, zero=False)


@mutant("rounds to bf16 before it rounds to fp8", family="basics", caught_by="accuracy")
def through_bf16(x: torch.Tensor, format: str) -> Pair:
    """8-bit floats rounded twice: to bf16 on the way."""
    q, scale = quantized(x, format)
    if q.dtype == torch.int8 or not x.numel():
        return q, scale
    largest = torch.finfo(q.dtype).max
    quotient = torch.where(scale[:, None] == 0, 0, x.float() / scale[:, None]).clamp(-largest, largest)
    return quotient.to(torch.bfloat16).to(q.dtype).contiguous(), scale


@mutant("multiplies by a rounded reciprocal", family="basics", caught_by="accuracy")
def by_reciprocal(x: torch.Tensor, format: str) -> Pair:
    """Multiplies by 1 / scale, which overflows for the smallest scales."""
    q, scale = quantized(x, format)
    if q.dtype.is_floating_point or not x.numel():
        return q, scale
    made = torch.where(scale[:, None] == 0, 0, x.float() * (1 / scale[:, None]))
    return made.round().clamp(-128, 127).nan_to_num(nan=0).to(torch.int8).contiguous(), scale
