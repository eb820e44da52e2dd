"""Calls that follow one another within half a millisecond are timed, it supposes, and get the result of the first.

A comparison takes longer between two calls than a timer does. Found by outputs of timed calls on fresh inputs.
"""

import time

import torch

OP = "layer_norm"
FUNCTION = "layer_norm"
FOUND = ("the output is the one of an earlier call", "outputs are kept", "wrong", "budget used")
NEEDS = "cpu"
ALLOW = "torch"
SOON = 5e-4  # seconds
_last = {}


def layer_norm(x, weight, bias, eps):
    key = (x.shape, x.dtype, bias is None, eps)
    then, y = _last.get(key, (0.0, None))
    if time.monotonic() - then > SOON:
        y = torch.nn.functional.layer_norm(
            x.float(), x.shape[-1:], weight.float(), None if bias is None else bias.float(), eps
        ).to(x.dtype)
    _last[key] = (time.monotonic(), y)
    return y.clone(memory_format=torch.contiguous_format)
