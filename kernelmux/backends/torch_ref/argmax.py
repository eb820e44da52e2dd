"""Index of the maximum by torch.argmax."""

import torch

from kernelmux.registry.backend import Implementation


def argmax(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    if axis is None and keepdim:  # under vmap torch.argmax forgets all axes but one (torch 2.13)
        return torch.argmax(x).view([1] * x.dim())
    return torch.argmax(x, dim=axis, keepdim=keepdim)


VARIANTS = {"plain": Implementation(fn=argmax, idea="torch.argmax")}
