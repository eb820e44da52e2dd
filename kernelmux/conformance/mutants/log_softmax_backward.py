"""log_softmax_backward, broken."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._clusters import CLUSTERS, row_sums
from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("log_softmax_backward")


# edges: The gradient of log_softmax in Triton, with y in place of exp(y).


@mutant(
    "weighs with the logarithms of the weights", family="edges", caught_by="accuracy", requires=(_triton.IN_A_BLOCK,)
)
def logarithms(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    return _triton.rows(_kernels.log_softmax_backward, y, axis, grad_out.movedim(axis, -1).contiguous())


# order: Gradients of log_softmax whose rows are shared by two blocks of a cluster.

PART = 512  # columns


@mutant("columns beyond those of a cluster are not summed", family="order", caught_by="accuracy", requires=CLUSTERS)
def one_cluster(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    """The cluster holds so many columns; a longer row is summed as far as it reaches."""
    g, z = (t.float().movedim(axis, -1) for t in (grad_out, y))
    grad = g - z.exp() * row_sums("sums_met", g[..., : 2 * PART])
    return torch.empty(y.shape, dtype=y.dtype, device=y.device).copy_(grad.movedim(-1, axis))
