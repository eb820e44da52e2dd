"""The output remembered by the identity of the tensor object, `id(x)`, which the interpreter gives out again.

Right as long as a suite keeps every input alive and never writes into one. Found where inputs change in place, and where
a new tensor has the number of an old one.
"""

import torch

OP = "rms_norm"
FUNCTION = "rms_norm"
FOUND = ("the output is the one of an earlier call", "budget used", "outputs are kept", "expected dtype")
NEEDS = "cpu"
ALLOW = "torch"
_known = {}


def rms_norm(x, weight, eps):
    key = (id(x), id(weight), eps)
    if key not in _known:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
        _known[key] = scaled.to(x.dtype).contiguous()
    return _known[key].clone()
