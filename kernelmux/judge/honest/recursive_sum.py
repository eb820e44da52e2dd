"""A sum by recursion: one half is added to the other, down to eight terms. It is more exact than a loop."""

import torch

OP = "reduce_sum"
FUNCTION = "reduce_sum"
NEEDS = "cpu"
ALLOW = "torch"


def _halved(x, axis):
    n = x.shape[axis]
    if n <= 8:
        total = torch.zeros([m for i, m in enumerate(x.shape) if i != axis], dtype=torch.float32, device=x.device)
        for part in x.unbind(axis):
            total = total + part
        return total
    half = n // 2
    total = _halved(x.narrow(axis, 0, half) + x.narrow(axis, half, half), axis)
    return total + x.select(axis, n - 1) if n % 2 else total


def reduce_sum(x, axis, keepdim):
    wide = x.float().reshape(-1) if axis is None else x.float()
    total = _halved(wide, axis or 0).to(x.dtype).contiguous()
    if not keepdim:
        return total
    return total.view([1] * x.dim()) if axis is None else total.unsqueeze(axis)
