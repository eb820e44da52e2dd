"""Gradients of softmax whose rows are shared by two blocks of a cluster."""

from collections.abc import Callable

import torch

from kernelmux.conformance.mutants.order._clusters import CLUSTERS, SOURCE, row_sums
from kernelmux.registry.backend import Implementation

__all__ = ["CAUGHT_BY", "ONLY_CPU", "SOURCE", "VARIANTS"]


def _by(entry: str) -> Callable[[torch.Tensor, torch.Tensor, int, float], torch.Tensor]:
    def softmax_backward(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
        g, p = (t.float().movedim(axis, -1) for t in (grad_out, y))
        grad = scale * p * (g - row_sums(entry, g * p))
        return torch.empty(y.shape, dtype=y.dtype, device=y.device).copy_(grad.movedim(-1, axis))

    return softmax_backward


VARIANTS = {
    "unwaited": Implementation(
        fn=_by("sums_unwaited"), idea="reads the sum of the other block without waiting for it", requires=CLUSTERS
    ),
    "left": Implementation(fn=_by("sums_left"), idea="a block ends while the other reads from it", requires=CLUSTERS),
}

CAUGHT_BY = {"unwaited": "memory", "left": "memory"}
ONLY_CPU = frozenset(CAUGHT_BY)  # on a GPU the other block is mostly in time
