"""Keeps scratch memory from call to call, one for each thread, and returns none of it."""

import threading

import torch

OP = "square"
FUNCTION = "square"
NEEDS = "cpu"
ALLOW = "torch"
_own = threading.local()


def _scratch(n, device):
    kept = getattr(_own, "memory", None)
    if kept is None or kept.numel() < n or kept.device != device:
        kept = _own.memory = torch.empty(max(n, 4096), dtype=torch.float32, device=device)
    return kept[:n]


def square(x):
    wide = _scratch(x.numel(), x.device).copy_(x.reshape(-1))
    return wide.mul_(wide).to(x.dtype, copy=True).view(x.shape)
