"""add_rms_norm in pieces of rows, one of which takes the wrong thing."""

import torch

from kernelmux.conformance.mutants.order._clusters import CLUSTERS, SOURCE, row_sums
from kernelmux.registry.backend import Implementation

__all__ = ["CAUGHT_BY", "SOURCE", "VARIANTS"]
Pair = tuple[torch.Tensor, torch.Tensor]


def _normed(z: torch.Tensor, squared: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    r = torch.rsqrt(row_sums("sums_met", squared * squared) / max(z.shape[-1], 1) + eps)
    return (z * r * weight.float()).to(weight.dtype)


def squares_of_x(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    total = x.float() + residual.float()
    return _normed(total, x.float(), weight, eps), total.to(x.dtype)


def total_twice_rounded(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """The saved total goes through bf16, which is what most callers have."""
    total = x.float() + residual.float()
    return _normed(total, total, weight, eps), total.to(torch.bfloat16).to(x.dtype)


PACKED = dict.fromkeys(("x", "residual", "weight"), "contiguous")
VARIANTS = {
    "squares_of_x": Implementation(
        fn=squares_of_x, idea="the squares are those of x, not of the total", requires=CLUSTERS, layout=PACKED
    ),
    "total_twice_rounded": Implementation(
        fn=total_twice_rounded, idea="the total is rounded twice", requires=CLUSTERS, layout=PACKED
    ),
}

CAUGHT_BY = {"squares_of_x": "accuracy", "total_twice_rounded": "accuracy"}
