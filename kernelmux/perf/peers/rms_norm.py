"""RMS norm in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library

_quack = function("quack.rmsnorm.rmsnorm_fwd")
_liger = function("liger_kernel.ops.rms_norm.rms_norm_forward")
_gems = function("flag_gems.rms_norm")


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


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack),
    "liger": library("liger_kernel", with_liger),
    "flag_gems": library("flag_gems", with_flag_gems),
}
