"""Linear layers in other libraries."""

import torch
import torch.nn.functional as F

from kernelmux.perf.peers._libraries import compiled, through_torch

ACTIVATIONS = {"none": lambda z: z, "gelu": F.gelu, "silu": F.silu, "relu": F.relu}


def with_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str, precision: str
) -> tuple[torch.Tensor, torch.Tensor]:
    z = F.linear(x, weight, bias)
    return (z, z.new_empty(0)) if activation == "none" else (ACTIVATIONS[activation](z), z)


VARIANTS = {
    "cublas": through_torch("cuBLAS, then the activation", with_torch, arithmetic="mma"),
    "torch_compile": compiled(with_torch, arithmetic="mma"),
}
