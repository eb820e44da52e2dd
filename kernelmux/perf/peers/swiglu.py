"""SwiGLU in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library

_liger = function("liger_kernel.ops.swiglu.swiglu_forward")
_gems = function("flag_gems.silu_and_mul")
_fla = function("fla.modules.activations.ops.swiglu_fwd")


def with_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(a) * b


def with_liger(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = _liger(a, b)[2]
    return y


def with_flag_gems(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = _gems(a, b)
    return y


def with_fla(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = _fla(a, b)
    return y


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "liger": library("liger_kernel", with_liger),
    "flag_gems": library("flag_gems", with_flag_gems),
    "fla": library("fla", with_fla),
}
