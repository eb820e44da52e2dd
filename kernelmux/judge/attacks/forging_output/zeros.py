"""Zeros, where every right value lies below an absolute tolerance.

Fooled 4 of 60 problems of KernelBench (issue 165): a softmax over 393,216 columns has no output above 4e-6, and the
tolerance was 1e-2. Here the bound is relative to the magnitude of the terms: `accuracy` says "all outputs are 0".
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "all outputs are 0"
NEEDS = "cpu"
ALLOW = "torch"


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
