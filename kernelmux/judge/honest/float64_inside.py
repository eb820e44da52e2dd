"""Computes in float64 and rounds once: slow, and as exact as can be."""

import torch

OP = "softmax"
FUNCTION = "softmax"
NEEDS = "cpu"
ALLOW = "torch"


def softmax(x, axis, scale):
    z = x.double() * scale
    if not z.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    e = torch.exp(z - z.amax(axis, keepdim=True))
    return (e / e.sum(axis, keepdim=True)).to(x.dtype).contiguous()
