"""The lower half of each fp32 number is cut off to make a bf16: no rounding, as shifting the bits does.

Half of the results are one unit too small, and training drifts. Found by the bound of one rounding to nearest.
"""

import torch

OP = "add"
FUNCTION = "add"
FOUND = ("budget used", "must be equal", "too small")
NEEDS = "cpu"
ALLOW = "torch"


def add(x, y):
    exact = x.float() + y.float()
    if x.dtype != torch.bfloat16:
        return exact.to(x.dtype).contiguous()
    return (exact.contiguous().view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
