"""The minimum by torch.compile."""

import torch

from kernelmux.perf.peers._libraries import compiled


def with_torch(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return torch.amin(x, () if axis is None else axis, keepdim)


VARIANTS = {"torch_compile": compiled(with_torch)}
