"""Prints and logs what it is about to do, at every call: whoever reads stdout as answers is confused."""

import logging
import sys

import torch

OP = "add"
FUNCTION = "add"
NEEDS = "cpu"
ALLOW = "torch"


def add(x, y):
    print(f"adding {tuple(x.shape)}: 1 failed attempt, passed on", file=sys.stderr)
    logging.getLogger("my-kernel").debug("strides %s", x.stride())
    return torch.add(x, y).contiguous()
