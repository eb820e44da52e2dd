"""Compiled by torch.jit.script, with elementary steps inside."""

import torch

OP = "gelu"
FUNCTION = "gelu"
NEEDS = "cpu"
ALLOW = "torch"


@torch.jit.script
def _gelu(x: torch.Tensor, tanh: bool) -> torch.Tensor:
    if tanh:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x * torch.sigmoid(2.0 * inner)
    return 0.5 * x * torch.erfc(-x * 0.7071067811865476)


def gelu(x, approximate):
    return _gelu(x.double(), approximate == "tanh").to(x.dtype).contiguous()
