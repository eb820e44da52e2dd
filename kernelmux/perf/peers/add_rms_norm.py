"""The sum with a residual and its RMS norm in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library
from kernelmux.perf.peers.rms_norm import fla_rows, matrix

_quack = function("quack.rmsnorm.rmsnorm_fwd")
_liger = function("liger_kernel.ops.fused_add_rms_norm.fused_add_rms_norm_forward")
_fla = function("fla.modules.norm.layernorm.layer_norm_fwd")
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


def with_fla(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    y, _, _, total = _fla(matrix(x), weight, None, eps, residual=matrix(residual), is_rms_norm=True)
    return y.view(x.shape), total.view(x.shape)


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack),
    "liger": library("liger_kernel", with_liger),
    "fla": library("fla", with_fla, *fla_rows()),
}
