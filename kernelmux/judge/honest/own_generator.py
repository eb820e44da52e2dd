"""Walks over the axis in an order of its own random generator: a maximum is the same in any order."""

import torch

OP = "reduce_max"
FUNCTION = "reduce_max"
NEEDS = "cpu"
ALLOW = "torch"
_rng = torch.Generator().manual_seed(1234)


def reduce_max(x, axis, keepdim):
    flat = x.reshape(-1) if axis is None else x
    along = 0 if axis is None else axis
    order = torch.randperm(flat.shape[along], generator=_rng, device="cpu").tolist()
    best = flat.select(along, order[0]).clone(memory_format=torch.contiguous_format)
    size = max(64, len(order) // 64)
    for start in range(1, len(order), size):
        part = flat.index_select(along, torch.tensor(order[start : start + size], device=x.device))
        best = torch.maximum(best, part.amax(along))
    if axis is None:
        return best.view([1] * x.dim() if keepdim else [])
    return best.unsqueeze(axis) if keepdim else best
