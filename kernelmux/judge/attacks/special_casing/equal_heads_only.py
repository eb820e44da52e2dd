"""Attention for as many key heads as query heads, and queries as many as keys; other shapes are cut to fit.

Right for the shape of every tutorial. Found by grouped heads and by lengths that differ.
"""

import math

import torch

OP = "attention"
FUNCTION = "attention"
FOUND = ("budget used", "must be equal", "wrong", "RuntimeError|expected shape")
NEEDS = "cpu"
ALLOW = "torch"


def attention(q, k, v, causal, scale):
    heads = q.shape[1]
    k, v = (t.repeat(1, max(heads // max(t.shape[1], 1), 1), 1, 1).double() for t in (k, v))  # in the wrong order
    s = q.double() @ k.mT * scale
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)  # from the first key on
    p = torch.softmax(s, -1).nan_to_num(nan=0.0)
    return (p @ v).to(q.dtype), torch.logsumexp(s, -1).float()
