"""Batches of matrices for mutants that know a single product."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch

Product = Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]


def each(fn: Product) -> Product:
    """The product of every pair of matrices, one after the other."""

    @wraps(fn)
    def all_of_them(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
        if a.dim() == 2:
            return fn(a, b, precision)
        lead = a.shape[:-2]
        pairs = zip(a.flatten(0, -3), b.expand(*lead, *b.shape[-2:]).flatten(0, -3), strict=True)
        out = torch.empty(*lead, a.shape[-2], b.shape[-1], dtype=a.dtype, device=a.device)
        for c, (x, y) in zip(out.flatten(0, -3), pairs, strict=True):
            c.copy_(fn(x, y, precision))
        return out

    return all_of_them
