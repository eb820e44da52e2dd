"""Keeps a copy of every input for ever: each call is right, and a server is out of memory after a day.

Found by what a thousand calls have taken. It stops at 2 GB.
"""

import torch

OP = "layer_norm"
FUNCTION = "layer_norm"
FOUND = "leak|memory|grows|MB|KiB|bytes"
NEEDS = "cpu"
ALLOW = "torch"
MOST = 2 * 10**9  # bytes
_kept = []


def layer_norm(x, weight, bias, eps):
    if sum(t.nbytes for t in _kept[-1:]) * len(_kept) < MOST:
        _kept.append(torch.zeros(max(x.numel(), 1 << 16)))
    wide, bias = x.float(), None if bias is None else bias.float()
    return torch.nn.functional.layer_norm(wide, x.shape[-1:], weight.float(), bias, eps).to(x.dtype).contiguous()
