"""Sum, broken for axes of length one and for nothing at all."""

import torch

from kernelmux.registry.backend import Implementation


def sound(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    axes = tuple(range(x.dim())) if axis is None else (axis,)
    return x.double().sum(axes, keepdim=keepdim).to(x.dtype) if axes else x.clone()


def squeezed(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Keeps the summed axis, then drops every axis of length one."""
    if axis is None or keepdim:
        return sound(x, axis, keepdim)
    return sound(x, axis, True).squeeze().contiguous()


def view_of_one(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """A sum of one term is that term, and needs no copy."""
    if axis is not None and x.shape[axis] == 1 and x.is_contiguous():
        return x if keepdim else x.squeeze(axis)
    return sound(x, axis, keepdim)


def expanded_zero(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    out = sound(x, axis, keepdim)
    return torch.zeros((), dtype=x.dtype, device=x.device).expand(out.shape) if x.numel() == 0 else out


def kept_strides(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The sums lie in memory in the order of the input's axes."""
    out = sound(x, axis, keepdim)
    turned = out.dim() == 2 and x.dim() > 1 and x.stride(0) < x.stride(-1)
    return out.t().contiguous().t() if turned else out


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it"),
    "squeezed": Implementation(fn=squeezed, idea="drops every axis of length one"),
    "view_of_one": Implementation(fn=view_of_one, idea="returns the input where each sum has one term"),
    "expanded_zero": Implementation(fn=expanded_zero, idea="the sum over nothing is one zero, expanded"),
    "kept_strides": Implementation(fn=kept_strides, idea="gives its output the order of the input's strides"),
}

CAUGHT_BY = {"squeezed": "shapes", "view_of_one": "shapes", "expanded_zero": "accuracy", "kept_strides": "layout"}
