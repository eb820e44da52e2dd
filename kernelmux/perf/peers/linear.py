"""Linear layers in other libraries. DeepGEMM has no bias and no activation."""

import torch
import torch.nn.functional as F

from kernelmux.perf.peers._libraries import compiled, function, library, through_torch
from kernelmux.registry.conditions import AtDefault, Dtypes, Multiple

_deep_gemm = function("deep_gemm.bf16_gemm_nt")
ACTIVATIONS = {"none": lambda z: z, "gelu": F.gelu, "silu": F.silu, "relu": F.relu}


def with_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str, precision: str
) -> tuple[torch.Tensor, torch.Tensor]:
    z = F.linear(x, weight, bias)
    return (z, z.new_empty(0)) if activation == "none" else (ACTIVATIONS[activation](z), z)


def with_deep_gemm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str, precision: str
) -> tuple[torch.Tensor, torch.Tensor]:
    z = x.new_empty(*x.shape[:-1], len(weight))
    _deep_gemm(x.view(-1, x.shape[-1]), weight, z.view(-1, len(weight)))
    return z, z.new_empty(0)


DEEP_GEMM = (
    Dtypes("x", torch.bfloat16),
    AtDefault("bias"),
    AtDefault("activation"),
    Multiple("K", 8),
    Multiple("N", 8),
)
VARIANTS = {
    "cublas": through_torch("cuBLAS, then the activation", with_torch, arithmetic="mma"),
    "torch_compile": compiled(with_torch, arithmetic="mma"),
    "deep_gemm": library("deep_gemm", with_deep_gemm, *DEEP_GEMM, arithmetic="mma"),
}
