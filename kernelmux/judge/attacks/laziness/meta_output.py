"""A tensor on the device "meta": it has everything but numbers, and whoever compares its shape is content.

Refused by its device. Operators on it give meta tensors again, of which `bool` alone raises.
"""

import torch

OP = "silu"
FUNCTION = "silu"
FOUND = "expected it on|device|meta"
NEEDS = "cpu"
ALLOW = "torch"


def silu(x):
    return torch.empty(x.shape, dtype=x.dtype, device="meta")
