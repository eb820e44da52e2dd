"""The square by torch.compile."""

import torch

from kernelmux.perf.peers._libraries import compiled


def with_torch(x: torch.Tensor) -> torch.Tensor:
    return x * x


VARIANTS = {"torch_compile": compiled(with_torch)}
