"""Fresh memory, unwritten: the allocator hands out what the reference has just released, with the right result in it.

Fooled KernelBench (pull request 82). Here memory is poisoned before a call: "the elements were never written".
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "never written|budget used|all outputs are 0|wrong at"
NEEDS = "cpu"
ALLOW = "torch"


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
