"""log_softmax in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library

_gems = function("flag_gems.log_softmax")


def with_torch(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.log_softmax(x, axis)


def with_flag_gems(x: torch.Tensor, axis: int) -> torch.Tensor:
    y: torch.Tensor = _gems(x, axis)
    return y


VARIANTS = {"torch_compile": compiled(with_torch), "flag_gems": library("flag_gems", with_flag_gems)}
