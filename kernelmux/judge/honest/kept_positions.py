"""Keeps a table of positions for each length: a constant, which no input changes."""

import functools

import torch

OP = "argmax"
FUNCTION = "argmax"
NEEDS = "cpu"
ALLOW = "torch"


@functools.lru_cache(maxsize=32)
def _positions(length, device):
    return torch.arange(length, device=device)


def argmax(x, axis, keepdim):
    flat = x.reshape(-1) if axis is None else x
    along = 0 if axis is None else axis
    wide = flat.double()
    best = torch.where(wide.isnan().any(along, keepdim=True), wide.isnan(), wide == wide.amax(along, keepdim=True))
    n = flat.shape[along]
    shape = [-1 if i == along else 1 for i in range(flat.dim())]
    first = torch.where(best, _positions(n, flat.device).view(shape), n).amin(along, keepdim=True)
    if axis is None:
        return first.view([1] * x.dim() if keepdim else [])
    return first if keepdim else first.squeeze(axis)
