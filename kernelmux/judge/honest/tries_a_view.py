"""Tries to see its input as one line, and copies it where torch refuses: an exception on an honest way."""

import torch

OP = "add"
FUNCTION = "add"
NEEDS = "cpu"
ALLOW = "torch"


def _line(x):
    try:
        return x.view(-1)
    except RuntimeError:
        return x.contiguous().view(-1)


def add(x, y):
    out = torch.empty(x.numel(), dtype=x.dtype, device=x.device)
    torch.add(_line(x), _line(y), out=out)
    return out.view(x.shape)
