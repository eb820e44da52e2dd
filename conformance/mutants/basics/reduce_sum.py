"""Sum, broken."""

import torch

from kernelmux.registry.backend import Implementation


def sound(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    axes = tuple(range(x.dim())) if axis is None else (axis,)
    return x.double().sum(axes, keepdim=keepdim).to(x.dtype) if axes else x.clone()


def low_accumulator(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """A sequential sum in the storage dtype, fp32 in bf16."""
    low = x.to(torch.bfloat16) if x.dtype == torch.float32 else x
    flat = low.flatten() if axis is None else low.movedim(axis, 0)
    total = torch.zeros(flat.shape[1:] if axis is not None else (), dtype=low.dtype, device=x.device)
    for chunk in flat.split(16):
        total = total + chunk.double().sum(0).to(low.dtype)
    return total.to(x.dtype).reshape(sound(x, axis, keepdim).shape)


def mean(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    count = x.numel() if axis is None else x.shape[axis]
    return sound(x, axis, keepdim) / max(count, 1)


def nan_when_empty(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    out = sound(x, axis, keepdim)
    return out if x.numel() else torch.full_like(out, torch.nan)


def forgotten_keepdim(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return sound(x, axis, False)


def skipped_infinity(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Skips infinities, as a mask by comparison does."""
    return sound(torch.where(x.isinf(), 0.0, x), axis, keepdim)


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it"),
    "low_accumulator": Implementation(fn=low_accumulator, idea="accumulates in the storage dtype"),
    "mean": Implementation(fn=mean, idea="divides by the number of terms"),
    "nan_when_empty": Implementation(fn=nan_when_empty, idea="the sum over nothing is NaN"),
    "forgotten_keepdim": Implementation(fn=forgotten_keepdim, idea="keepdim is ignored"),
    "skipped_infinity": Implementation(fn=skipped_infinity, idea="infinities are masked out"),
}

CAUGHT_BY = {
    "low_accumulator": "accuracy",
    "mean": "exact",
    "nan_when_empty": "shapes",
    "forgotten_keepdim": "accuracy",
    "skipped_infinity": "special_values",
}
