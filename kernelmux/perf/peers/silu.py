"""SiLU in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library

_gems = function("flag_gems.silu")
_fla = function("fla.modules.activations.ops.swish_fwd")


def with_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x)


def with_flag_gems(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = _gems(x)
    return y


def with_fla(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = _fla(x)
    return y


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "flag_gems": library("flag_gems", with_flag_gems),
    "fla": library("fla", with_fla),
}
