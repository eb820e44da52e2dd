"""Scalars are taken to be what a call without them has: eps is a constant, whatever was asked for.

Most suites call with the defaults. Found by every other value.
"""

import torch

OP = "rms_norm"
FUNCTION = "rms_norm"
FOUND = ("budget used", "must be equal", "wrong")
NEEDS = "cpu"
ALLOW = "torch"


def rms_norm(x, weight, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype).contiguous()
