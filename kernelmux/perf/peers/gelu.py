"""GELU in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library

_gems = function("flag_gems.gelu")


def with_torch(x: torch.Tensor, approximate: str) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


def with_flag_gems(x: torch.Tensor, approximate: str) -> torch.Tensor:
    y: torch.Tensor = _gems(x, approximate=approximate)
    return y


VARIANTS = {"torch_compile": compiled(with_torch), "flag_gems": library("flag_gems", with_flag_gems)}
