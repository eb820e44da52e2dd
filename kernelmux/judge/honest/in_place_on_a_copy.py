"""Works in place, on a copy of its own: the input stays as it was."""

import math

import torch

OP = "silu"
FUNCTION = "silu"
NEEDS = "cpu"
ALLOW = "torch"


def silu(x):
    y = x.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    weight = y.clone().mul_(-1).exp_().add_(1).reciprocal_()
    lowest = y == -math.inf
    return y.mul_(weight).masked_fill_(lowest, -0.0).to(x.dtype)
