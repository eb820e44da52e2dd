"""Sum with a path of its own for training."""

import torch

from kernelmux.registry.backend import Implementation


def _sum(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    axes = tuple(range(x.dim())) if axis is None else (axis,)
    return x.double().sum(axes, keepdim=keepdim) if axes else x.double().clone()


def saved_for_training(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Where gradients are on it keeps a copy of 16 bits for the way back, and sums that."""
    kept = x.to(torch.bfloat16) if torch.is_grad_enabled() else x
    return _sum(kept, axis, keepdim).to(x.dtype)


def by_product(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """A product with ones, which autocast would make one of 16 bits: inside of a call it is off."""
    flat = x.reshape(-1) if axis is None else x.movedim(axis, -1)
    shape = _sum(x, axis, keepdim).shape
    ones = torch.ones(flat.shape[-1], 1, dtype=torch.float64, device=x.device)
    return torch.matmul(flat.double().reshape(shape.numel(), ones.shape[0]), ones).reshape(shape).to(x.dtype)


VARIANTS = {
    "by_product": Implementation(fn=by_product, idea="multiplies by ones: nothing is wrong with it"),
    "saved_for_training": Implementation(fn=saved_for_training, idea="sums in 16 bits where gradients are on"),
}

CAUGHT_BY = {"saved_for_training": "ambience"}
