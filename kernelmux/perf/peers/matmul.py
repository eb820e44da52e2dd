"""Products of matrices in other libraries: cuBLAS through torch, which may split K and round each part to 16 bits."""

import torch

from kernelmux.perf.peers._libraries import compiled, through_torch


def with_torch(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return torch.matmul(a, b)


VARIANTS = {
    "cublas": through_torch("cuBLAS", with_torch, arithmetic="mma"),
    "torch_compile": compiled(with_torch, arithmetic="mma"),
}
