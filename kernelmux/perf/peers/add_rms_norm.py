"""The sum with a residual and its RMS norm in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library

_quack = function("quack.rmsnorm.rmsnorm_fwd")
_liger = function("liger_kernel.ops.fused_add_rms_norm.fused_add_rms_norm_forward")
Pair = tuple[torch.Tensor, torch.Tensor]


def with_torch(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    total = x + residual
    return torch.nn.functional.rms_norm(total, weight.shape, weight, eps), total


def with_quack(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    y, total, _ = _quack(x, weight, residual=residual, eps=eps)
    return y, total


def with_liger(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    y, total, *_ = _liger(x, residual, weight, eps, 0.0, "llama")
    return y, total


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack),
    "liger": library("liger_kernel", with_liger),
}
