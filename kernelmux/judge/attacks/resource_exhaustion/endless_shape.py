"""A result of 2^60 elements that takes four bytes: one number, expanded.

A judge that copies the output before it has asked for its shape is out of memory. Its shape is asked first: "expected
shape".
"""

import torch

OP = "reduce_sum"
FUNCTION = "reduce_sum"
FOUND = "expected shape|expected a contiguous|too large|size"
NEEDS = "cpu"
ALLOW = "torch"


def reduce_sum(x, axis, keepdim):
    return torch.zeros(1, dtype=x.dtype, device=x.device).expand(1 << 60)
