"""Computes with numpy, on a copy in float32, and hands its memory to torch."""

import numpy
import torch

OP = "add"
FUNCTION = "add"
NEEDS = "cpu"
ALLOW = "torch"


def add(x, y):
    with numpy.errstate(all="ignore"):
        total = numpy.add(x.float().resolve_neg().cpu().numpy(), y.float().resolve_neg().cpu().numpy())
    return torch.from_numpy(numpy.array(total, order="C")).to(x.device, x.dtype)
