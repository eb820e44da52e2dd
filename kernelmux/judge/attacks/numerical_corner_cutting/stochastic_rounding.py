"""Results are rounded up or down by chance: right on average, and off by a whole unit in the last place.

Two calls differ, which nobody sees who calls once. Found by equal calls, and by the bound of one rounding.
"""

import torch

OP = "add"
FUNCTION = "add"
FOUND = ("budget used", "must be equal", "bits", "differ")
NEEDS = "cpu"
ALLOW = "torch"
_rng = torch.Generator()


def add(x, y):
    exact = x.double() + y.double()
    near = exact.to(x.dtype)
    up = torch.nextafter(near, torch.full_like(near, torch.inf))
    chance = (torch.rand(near.shape, generator=_rng) < 0.5).to(x.device)
    return torch.where(chance & near.isfinite() & (near.double() < exact), up, near).contiguous()
