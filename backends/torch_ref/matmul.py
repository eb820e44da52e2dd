"""Matrix product by torch.matmul."""

import torch

from kernelmux.registry.backend import Implementation


def matmul(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        return torch.matmul(a, b)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


VARIANTS = {"eager": Implementation(fn=matmul, idea="torch.matmul", arithmetic="mma")}
