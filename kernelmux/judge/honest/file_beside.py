"""Imports a file that lies beside it, as larger submissions do."""

import torch
from _sigmoids import sigmoid

OP = "silu"
FUNCTION = "silu"
NEEDS = "cpu"
ALLOW = "torch"


def silu(x):
    wide = x.double()
    y = wide * sigmoid(wide)
    return torch.where(wide == -torch.inf, -0.0, y).to(x.dtype).contiguous()
