"""The gradient of softmax in other libraries. fla multiplies in the dtype of y, which in 16 bits is beyond the bound."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library
from kernelmux.perf.peers.softmax import LastAxis
from kernelmux.registry.conditions import AtMost, Dtypes, OneOf

_quack = function("quack.softmax.softmax_bwd")
_gems = function("flag_gems.softmax_backward")
_fla = function("fla.ops.utils.softmax.softmax_bwd")
PLAIN = OneOf("scale", 1.0)


def with_torch(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if scale == 1.0:
        return torch.ops.aten._softmax_backward_data(grad_out, y, axis, y.dtype)  # type: ignore[no-any-return]
    grad = torch.ops.aten._softmax_backward_data(grad_out.float(), y.float(), axis, torch.float32)
    return (grad * scale).to(y.dtype)  # type: ignore[no-any-return]


def with_quack(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    grad: torch.Tensor = _quack(grad_out, y)
    return grad


def with_flag_gems(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    grad: torch.Tensor = _gems(grad_out, y, axis, y.dtype)
    return grad


def with_fla(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    grad: torch.Tensor = _fla(y.contiguous(), grad_out.contiguous(), y.dtype)
    return grad


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack, PLAIN, LastAxis("y"), AtMost("N", 131072)),
    "flag_gems": library("flag_gems", with_flag_gems, PLAIN),
    "fla": library("fla", with_fla, PLAIN, LastAxis("y"), Dtypes("y", torch.float32), AtMost("N", 32768)),
}
