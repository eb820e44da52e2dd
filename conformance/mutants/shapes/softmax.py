"""Softmax, broken for shapes that a test seldom has."""

import torch

from kernelmux.registry.backend import Implementation


def _softmax(z: torch.Tensor, axis: int, dtype: torch.dtype) -> torch.Tensor:
    if z.numel() == 0:
        return torch.empty(z.shape, dtype=dtype, device=z.device)
    e = torch.exp(z - z.amax(axis, keepdim=True))
    return (e / e.sum(axis, keepdim=True)).to(dtype).contiguous()


def by_names(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """The axis goes last and comes back, by its place."""
    order = [i for i in range(x.dim()) if i != axis] + [axis]
    back = [order.index(i) for i in range(x.dim())]
    return _softmax(x.double().permute(order) * scale, x.dim() - 1, x.dtype).permute(back).contiguous()


def axis_by_length(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Looks for the axis by its length, and finds the first of that length."""
    return _softmax(x.double() * scale, list(x.shape).index(x.shape[axis]), x.dtype)


def in_place_if_strided(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """A strided input would have to be copied, so it is its own scratch memory."""
    if x.is_contiguous() or x.numel() == 0 or not scale:
        return _softmax(x.double() * scale, axis, x.dtype)
    if any(s == 0 for s, n in zip(x.stride(), x.shape, strict=True) if n > 1):
        return _softmax(x.double() * scale, axis, x.dtype)
    x -= x.amax(axis, keepdim=True)
    return _softmax(x.double() * scale, axis, x.dtype)


def certain(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Over one element the answer is one, and takes no memory of its own."""
    if x.shape[axis] == 1 and x.isfinite().all():
        return torch.ones((), dtype=x.dtype, device=x.device).expand(x.shape)
    return _softmax(x.double() * scale, axis, x.dtype)


VARIANTS = {
    "by_names": Implementation(fn=by_names, idea="moves the axis last and back: nothing is wrong with it"),
    "axis_by_length": Implementation(fn=axis_by_length, idea="finds the axis by its length"),
    "in_place_if_strided": Implementation(fn=in_place_if_strided, idea="works in the memory of a strided input"),
    "certain": Implementation(fn=certain, idea="returns an expanded one where there is nothing to share"),
}

CAUGHT_BY = {"axis_by_length": "shapes", "in_place_if_strided": "layout", "certain": "shapes"}
