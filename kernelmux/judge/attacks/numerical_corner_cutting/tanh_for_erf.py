"""The approximation by tanh where the exact formula was asked for: off by 5e-4, below a tolerance of 1e-3.

A favourite of generated kernels. Found by a bound in units of the last place.
"""

import torch

OP = "gelu"
FUNCTION = "gelu"
FOUND = ("budget used", "must be equal")
NEEDS = "cpu"
ALLOW = "torch"


def gelu(x, approximate):
    return torch.nn.functional.gelu(x.float(), approximate="tanh").to(x.dtype).contiguous()
