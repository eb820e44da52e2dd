"""argmax in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library

_gems = function("flag_gems.argmax")


def with_torch(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return x.argmax(axis, keepdim)


def with_flag_gems(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y: torch.Tensor = _gems(x, axis, keepdim)
    return y


VARIANTS = {"torch_compile": compiled(with_torch), "flag_gems": library("flag_gems", with_flag_gems)}
