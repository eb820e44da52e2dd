"""Attention over blocks of keys with a running maximum and sum, so that no matrix of weights is ever whole."""

import math

import torch

OP = "attention"
FUNCTION = "attention"
NEEDS = "cpu"
ALLOW = "torch"
BLOCK = 16  # or as many as make 16 blocks


def attention(q, k, v, causal, scale):
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    k, v = (t.double().repeat_interleave(group, 1) for t in (k, v))
    wide, m, n = q.double(), q.shape[2], k.shape[2]
    at = torch.arange(m, device=q.device)[:, None] + n - m
    top = torch.full((*q.shape[:3], 1), -math.inf, dtype=torch.float64, device=q.device)
    total = torch.zeros_like(top)
    y = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    size = max(BLOCK, n // 16)
    for start in range(0, n, size):
        j = torch.arange(start, min(start + size, n), device=q.device)
        s = wide @ k[:, :, j].mT * scale
        if causal:
            s = torch.where(j <= at, s, -math.inf)
        higher = torch.maximum(top, s.amax(-1, keepdim=True))
        shift = torch.where(higher == -math.inf, 0.0, higher)
        p, kept = torch.exp(s - shift), torch.exp(top - shift)
        total, y, top = total * kept + p.sum(-1, keepdim=True), y * kept + p @ v[:, :, j], higher
    lse = torch.where(total > 0, top + total.log(), -math.inf)[..., 0]
    lse = torch.where(total[..., 0].isnan(), math.nan, lse)
    return (y / torch.where(total == 0, 1.0, total)).to(q.dtype).contiguous(), lse.float().contiguous()
