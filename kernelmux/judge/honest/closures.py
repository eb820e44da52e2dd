"""A function that makes functions: the formula is a closure over constants, chosen by an argument."""

import math

import torch

OP = "gelu"
FUNCTION = "gelu"
NEEDS = "cpu"
ALLOW = "torch"


def _by_tanh(root, cubic):
    def weight(x):
        return torch.sigmoid(2 * root * (x + cubic * x**3))

    return weight


def _by_erf(root):
    return lambda x: torch.special.erfc(-x / root) / 2


WEIGHTS = {"none": _by_erf(math.sqrt(2)), "tanh": _by_tanh(math.sqrt(2 / math.pi), 0.044715)}


def gelu(x, approximate):
    wide = x.double()
    return (wide * WEIGHTS[approximate](wide)).to(x.dtype).contiguous()
