"""Gradients of log_softmax whose rows are shared by two blocks of a cluster."""

import torch

from kernelmux.conformance.mutants.order._clusters import CLUSTERS, SOURCE, row_sums
from kernelmux.registry.backend import Implementation

__all__ = ["CAUGHT_BY", "SOURCE", "VARIANTS"]
PART = 512  # columns


def one_cluster(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    """The cluster holds so many columns; a longer row is summed as far as it reaches."""
    g, z = (t.float().movedim(axis, -1) for t in (grad_out, y))
    grad = g - z.exp() * row_sums("sums_met", g[..., : 2 * PART])
    return torch.empty(y.shape, dtype=y.dtype, device=y.device).copy_(grad.movedim(-1, axis))


VARIANTS = {
    "one_cluster": Implementation(
        fn=one_cluster, idea="columns beyond those of a cluster are not summed", requires=CLUSTERS
    )
}

CAUGHT_BY = {"one_cluster": "accuracy"}
