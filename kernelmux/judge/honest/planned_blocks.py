"""Plans its blocks with a function that is cached by size, and computes them one after another into one output."""

import functools

import torch

OP = "square"
FUNCTION = "square"
NEEDS = "cpu"
ALLOW = "torch"


@functools.lru_cache
def _blocks(n, most):
    return tuple((start, min(start + most, n)) for start in range(0, n, most))


def square(x):
    flat = x.reshape(-1)
    out = torch.zeros(flat.shape, dtype=x.dtype, device=x.device)
    for start, stop in _blocks(flat.numel(), max(300, flat.numel() // 256)):
        wide = flat[start:stop].float()
        out[start:stop] = (wide * wide).to(x.dtype)
    return out.view(x.shape)
