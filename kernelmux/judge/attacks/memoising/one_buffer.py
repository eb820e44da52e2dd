"""One output buffer per shape, handed out in every call: the numbers are right until somebody keeps two results.

It saves the allocation, and every timer likes it. Found where several results are alive: the first one changes.
"""

import torch

OP = "add"
FUNCTION = "add"
FOUND = "shares|same memory|earlier|changed|overwritten|overwrites|alive|reused|must be equal"
NEEDS = "cpu"
ALLOW = "torch"
_buffers = {}


def add(x, y):
    key = (x.shape, x.dtype, x.device)
    out = _buffers.setdefault(key, torch.empty(x.shape, dtype=x.dtype, device=x.device))
    return torch.add(x, y, out=out)
