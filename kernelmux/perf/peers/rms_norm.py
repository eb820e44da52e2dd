"""RMS norm in other libraries."""

import torch

from kernelmux.perf.peers._cudnn_norms import norm
from kernelmux.perf.peers._libraries import compiled, function, library
from kernelmux.registry.conditions import AtMost, Condition, Dtypes, Either

_quack = function("quack.rmsnorm.rmsnorm_fwd")
_liger = function("liger_kernel.ops.rms_norm.rms_norm_forward")
_gems = function("flag_gems.rms_norm")
_fla = function("fla.modules.norm.layernorm.layer_norm_fwd")


def fla_rows(name: str = "x") -> tuple[Condition, ...]:
    """A row of the tensor `name` has 64 KiB at most."""
    return AtMost("N", 32768), Either(AtMost("N", 16384), Dtypes(name, torch.float16, torch.bfloat16))


def matrix(x: torch.Tensor) -> torch.Tensor:
    """x [..., N] as rows one after another: kernels of fla take no strides."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def with_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def with_quack(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y: torch.Tensor = _quack(x, weight, eps=eps)[0]
    return y


def with_liger(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y: torch.Tensor = _liger(x, weight, eps, 0.0, "llama", None)[0]
    return y


def with_flag_gems(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y: torch.Tensor = _gems(x, weight.shape, weight, eps)
    return y


def with_fla(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y: torch.Tensor = _fla(matrix(x), weight, None, eps, is_rms_norm=True)[0]
    return y.view(x.shape)


def with_cudnn_frontend(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return norm("rmsnorm", x, weight, None, eps)


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack),
    "liger": library("liger_kernel", with_liger),
    "flag_gems": library("flag_gems", with_flag_gems),
    "fla": library("fla", with_fla, *fla_rows()),
    "cudnn_frontend": library("cudnn", with_cudnn_frontend),
}
