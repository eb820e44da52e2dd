"""Sum, broken at both ends of the format."""

import torch

from kernelmux.registry.backend import Implementation


def _sum(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """In float64."""
    axes = tuple(range(x.dim())) if axis is None else (axis,)
    return x.double().sum(axes, keepdim=keepdim) if axes else x.double().clone()


def halves_first(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The two halves apart, then together."""
    flat = x.reshape(-1) if axis is None else x.movedim(axis, -1)
    middle = flat.shape[-1] // 2
    total = flat[..., :middle].double().sum(-1) + flat[..., middle:].double().sum(-1)
    return total.reshape(_sum(x, axis, keepdim).shape).to(x.dtype).contiguous()


def flushing(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    out = _sum(x, axis, keepdim).to(x.dtype)
    return torch.where(out.abs() < torch.finfo(x.dtype).smallest_normal, torch.zeros_like(out), out)


def saturating(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    largest, total = torch.finfo(x.dtype).max, _sum(x, axis, keepdim)
    bounded = total.clamp(-largest, largest)
    return torch.where(total.isfinite() & (_sum(x.abs(), axis, keepdim) < 1e38), bounded, total).to(x.dtype)


def one_infinity(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """An infinity decides its sum; whether one of the other sign follows is not looked at."""
    total, some = _sum(x, axis, keepdim), _sum(x.isinf() * x.sign(), axis, keepdim)
    unclear = total.isnan() & (_sum(x.isnan(), axis, keepdim) == 0) & (some == 0)
    return total.masked_fill(unclear, torch.inf).to(x.dtype).contiguous()


def narrow(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """bf16 is widened to fp16, which has more digits, and less range."""
    return _sum(x.half() if x.dtype == torch.bfloat16 else x, axis, keepdim).to(x.dtype).contiguous()


VARIANTS = {
    "halves_first": Implementation(fn=halves_first, idea="the two halves apart: as right as any"),
    "flushing": Implementation(fn=flushing, idea="a subnormal sum becomes zero"),
    "saturating": Implementation(fn=saturating, idea="a sum that overflows becomes the largest number"),
    "one_infinity": Implementation(fn=one_infinity, idea="inf and -inf in one sum give inf"),
    "narrow": Implementation(fn=narrow, idea="bf16 goes through fp16"),
}

CAUGHT_BY = {
    "flushing": "special_values", "saturating": "special_values", "one_infinity": "special_values",
    "narrow": "accuracy",
}  # fmt: skip
