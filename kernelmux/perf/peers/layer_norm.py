"""Layer norm in other libraries."""

import torch

from kernelmux.perf.peers._cudnn_norms import norm
from kernelmux.perf.peers._libraries import compiled, function, library, single
from kernelmux.perf.peers.rms_norm import fla_rows, matrix

_quack = function("quack.rmsnorm.layernorm_fwd")
_liger = function("liger_kernel.ops.layer_norm.layer_norm_forward")
_gems = function("flag_gems.layer_norm")
_fla = function("fla.modules.norm.layernorm.layer_norm_fwd")


def with_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)


def with_quack(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    y: torch.Tensor = _quack(x, single(weight), None if bias is None else single(bias), eps=eps)
    return y


def with_liger(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    y: torch.Tensor = _liger(x, weight, torch.zeros_like(weight) if bias is None else bias, eps)[0]
    return y


def with_flag_gems(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    y: torch.Tensor = _gems(x, weight.shape, weight, bias, eps)[0]
    return y


def with_fla(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    y: torch.Tensor = _fla(matrix(x), weight, bias, eps)[0]
    return y.view(x.shape)


def with_cudnn_frontend(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    return norm("layernorm", x, weight, bias, eps)


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack),
    "liger": library("liger_kernel", with_liger),
    "flag_gems": library("flag_gems", with_flag_gems),
    "fla": library("fla", with_fla, *fla_rows()),
    "cudnn_frontend": library("cudnn", with_cudnn_frontend),
}
