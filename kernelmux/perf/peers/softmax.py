"""Softmax in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library
from kernelmux.registry.conditions import AtMost, OneOf

_quack = function("quack.softmax.softmax_fwd")
_liger = function("liger_kernel.ops.softmax._softmax_forward")
_gems = function("flag_gems.softmax")
PLAIN = OneOf("scale", 1.0)


def with_torch(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if scale == 1.0:
        return torch.softmax(x, axis)
    return torch.softmax(x.float() * scale, axis).to(x.dtype)


def with_quack(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    y: torch.Tensor = _quack(x)
    return y


def with_liger(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    y: torch.Tensor = _liger(x)[0]
    return y


def with_flag_gems(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    y: torch.Tensor = _gems(x, axis)
    return y


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack, PLAIN, AtMost("N", 131072)),
    "liger": library("liger_kernel", with_liger, PLAIN, AtMost("N", 65536)),
    "flag_gems": library("flag_gems", with_flag_gems, PLAIN),
}
