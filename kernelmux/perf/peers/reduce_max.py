"""reduce_max in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library
from kernelmux.registry.conditions import OneOf

_gems = function("flag_gems.amax")


def with_torch(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return x.amax() if axis is None else x.amax(axis, keepdim)


def with_flag_gems(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y: torch.Tensor = _gems(x, [axis], keepdim)
    return y


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "flag_gems": library("flag_gems", with_flag_gems, OneOf("axis", 0, 1)),
}
