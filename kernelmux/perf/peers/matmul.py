"""Products of matrices in other libraries: cuBLAS through torch, which may split K and round each part to 16 bits, and
DeepGEMM."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelmux.perf.peers._libraries import compiled, function, library, through_torch
from kernelmux.registry.conditions import Dtypes, Multiple
from kernelmux.registry.spec import Call

_deep_gemm = function("deep_gemm.bf16_gemm_nn")


@dataclass(frozen=True)
class OneProduct:
    """No batch."""

    text: str = "a and b with two axes"

    def check(self, call: Call) -> str | None:
        axes = [call.arguments[name].dim() for name in "ab"]
        return None if axes == [2, 2] else f"a and b with {axes[0]} and {axes[1]} axes, needs {self.text}"


def with_torch(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return torch.matmul(a, b)


def with_deep_gemm(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    c = a.new_empty(a.shape[0], b.shape[1])
    _deep_gemm(a, b, c)
    return c


DEEP_GEMM = (Dtypes("a", torch.bfloat16), OneProduct(), Multiple("K", 8), Multiple("N", 8))
VARIANTS = {
    "cublas": through_torch("cuBLAS", with_torch, arithmetic="mma"),
    "torch_compile": compiled(with_torch, arithmetic="mma"),
    "deep_gemm": library("deep_gemm", with_deep_gemm, *DEEP_GEMM, arithmetic="mma"),
}
