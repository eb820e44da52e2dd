"""Softmax in other libraries. The autotuner of fla tries one warp too, which compiles for minutes where rows are long."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelmux.perf.peers._libraries import compiled, function, library
from kernelmux.registry.conditions import AtMost, OneOf
from kernelmux.registry.spec import Call

_quack = function("quack.softmax.softmax_fwd")
_liger = function("liger_kernel.ops.softmax._softmax_forward")
_gems = function("flag_gems.softmax")
_fla = function("fla.ops.utils.softmax.softmax_fwd")
PLAIN = OneOf("scale", 1.0)


@dataclass(frozen=True)
class LastAxis:
    """The axis is the last one of the tensor `name`."""

    name: str

    @property
    def text(self) -> str:
        return f"the last axis of {self.name}"

    def check(self, call: Call) -> str | None:
        axis, last = call.arguments["axis"], call.arguments[self.name].dim() - 1
        return None if axis == last else f"axis = {axis}, needs {self.text}"


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


def with_fla(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    y: torch.Tensor = _fla(x.contiguous(), x.dtype)
    return y


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack, PLAIN, LastAxis("x"), AtMost("N", 131072)),
    "liger": library("liger_kernel", with_liger, PLAIN, LastAxis("x"), AtMost("N", 65536)),
    "flag_gems": library("flag_gems", with_flag_gems, PLAIN),
    "fla": library("fla", with_fla, PLAIN, LastAxis("x"), AtMost("N", 32768)),
}
