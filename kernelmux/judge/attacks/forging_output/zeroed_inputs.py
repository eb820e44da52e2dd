"""The input is zeroed, so that the reference, which runs later, finds zeros as well and agrees.

Fooled KernelBench (pull request 82). Here the reference has tensors of its own; every check, and perf, compares the
inputs after the call: "the input x was changed by the call".
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "the input x was changed by the call|read-only|budget used"
NEEDS = "cpu"
ALLOW = "torch"


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    x.zero_()
    return torch.full(x.shape, 1 / max(x.shape[axis], 1), dtype=x.dtype, device=x.device)
