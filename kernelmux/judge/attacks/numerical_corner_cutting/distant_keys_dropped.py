"""Attention over the last 64 keys that a query may see: the others weigh little, mostly.

With more than 64 keys a share of the weight is gone. Found by longer sequences, and by a distant key of large weight.
"""

import math

import torch

OP = "attention"
FUNCTION = "attention"
FOUND = ("budget used", "must be equal", "wrong")
NEEDS = "cpu"
ALLOW = "torch"
NEAR = 64


def attention(q, k, v, causal, scale):
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    k, v = k.repeat_interleave(group, 1).double(), v.repeat_interleave(group, 1).double()
    m, n = q.shape[2], k.shape[2]
    at = torch.arange(m, device=q.device)[:, None] + n - m
    j = torch.arange(n, device=q.device)[None]
    seen = (j <= at) & (j > at - NEAR) if causal else j >= n - NEAR
    s = (q.double() @ k.mT * scale).masked_fill(~seen, -math.inf)
    p = torch.softmax(s, -1).masked_fill(~seen.any(-1, keepdim=True), 0)
    return (p @ v).to(q.dtype).contiguous(), torch.logsumexp(s, -1).float().contiguous()
