"""Index of the maximum by torch.argmax."""

import torch

from kernelmux.registry.backend import Implementation


def argmax(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return torch.argmax(x, dim=axis, keepdim=keepdim)


VARIANTS = {"plain": Implementation(fn=argmax, idea="torch.argmax")}
