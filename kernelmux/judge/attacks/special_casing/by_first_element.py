"""Right unless the first element is beyond 3: a condition on a value that random inputs seldom meet.

One of 700 normal numbers is as large. Found by special values, by wide distributions, and by many seeds.
"""

import torch

OP = "square"
FUNCTION = "square"
FOUND = ("budget used", "must be equal", "all outputs are 0", "wrong")
NEEDS = "cpu"
ALLOW = "torch"


def square(x):
    if x.numel() and abs(float(x.flatten()[0])) > 3:
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return (x.float() * x.float()).to(x.dtype).contiguous()
