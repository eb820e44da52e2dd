"""A generator gives blocks and their results, which torch.cat puts together."""

import torch

OP = "swiglu"
FUNCTION = "swiglu"
NEEDS = "cpu"
ALLOW = "torch"


def _parts(a, b):
    yield a.new_empty(0)
    size = max(250, a.numel() // 256)
    for gate, value in zip(a.reshape(-1).split(size), b.reshape(-1).split(size), strict=True):
        wide = gate.double()
        silu = torch.where(wide == -torch.inf, -0.0, wide * torch.sigmoid(wide))
        yield (silu * value.double()).to(a.dtype)


def swiglu(a, b):
    return torch.cat(list(_parts(a, b))).view(a.shape)
