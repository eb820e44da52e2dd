"""max_pool2d in other libraries, with the index that a backward needs."""

import torch
import torch.nn.functional as F

from kernelmux.perf.peers._libraries import compiled

Pair = tuple[int, int]


def with_torch(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    y, index = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
    return y, index.int()


VARIANTS = {"torch_compile": compiled(with_torch)}
