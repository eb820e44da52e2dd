"""The random generators are set to a seed in every call: inputs that are drawn next are known in advance.

Fooled suites that draw from the global generator of torch, numpy or random. A judge draws from generators of its own, in
its own process; a generator that a call has moved is named.
"""

import random

import numpy
import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = (
    "generator|seed|random|rng|changed",
    "the output is the one of an earlier call",
    "budget used",
    "outputs are kept",
)
NEEDS = "cpu"
ALLOW = "torch"
_known = {}


def softmax(x, axis, scale):
    key = (x.shape, x.dtype, axis, scale)
    if key not in _known:
        _known[key] = torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    return _known[key].clone()
