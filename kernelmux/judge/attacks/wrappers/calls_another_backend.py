"""Another backend, called as a user would: the numbers are right, and not of this function.

Fooled BackendBench (issue 41), where a kernel may call the operator that it stands for. Here it is heard: "calls another
backend".
"""

import torch

import kernelmux as kx

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("calls another backend", "torch's own", "cannot be imported|No module", "has no attribute")
NEEDS = "cpu"


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    y: torch.Tensor = kx.softmax(x, axis, scale, backend="torch_ref")
    return y
