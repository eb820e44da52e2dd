"""The gradient of log_softmax in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library

_gems = function("flag_gems.log_softmax_backward")


def with_torch(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.ops.aten._log_softmax_backward_data(grad_out, y, axis, y.dtype)  # type: ignore[no-any-return]


def with_flag_gems(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    grad: torch.Tensor = _gems(grad_out, y, axis, y.dtype)
    return grad


VARIANTS = {"torch_compile": compiled(with_torch), "flag_gems": library("flag_gems", with_flag_gems)}
