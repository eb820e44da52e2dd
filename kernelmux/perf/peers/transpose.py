"""Transposition in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled


def with_torch(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous()


VARIANTS = {"torch_compile": compiled(with_torch)}
