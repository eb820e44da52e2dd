"""The negated sum is stored, and a view with torch's negative bit returned: whoever reads it flips the signs.

Numbers are right wherever torch reads them, and wrong for a kernel, which gets an address. The memory itself must hold
the result.
"""

import torch

OP = "add"
FUNCTION = "add"
FOUND = ("negative bit|negated|lazy|view", "budget used", "wrong sign")
NEEDS = "cpu"
ALLOW = "torch"


def add(x, y):
    return torch._neg_view(torch.add(x, y).contiguous().neg_())
