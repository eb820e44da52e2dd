"""softmax_backward, broken."""

from collections.abc import Callable

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._clusters import CLUSTERS, row_sums
from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("softmax_backward")


# edges: The gradient of softmax in Triton, with a sum of gradients that knows no weights.


def _gradient(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float, weighed: bool) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    grad = grad_out.movedim(axis, -1).contiguous()
    return _triton.rows(_kernels.softmax_backward, y, axis, grad, scale, WEIGHED=weighed)


@mutant("nothing is wrong with it", family="edges", requires=(_triton.IN_A_BLOCK,))
def weighed(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _gradient(grad_out, y, axis, scale, True)


@mutant("sums gradients without their weights", family="edges", caught_by="accuracy", requires=(_triton.IN_A_BLOCK,))
def unweighed(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _gradient(grad_out, y, axis, scale, False)


# order: Gradients of softmax whose rows are shared by two blocks of a cluster.
# only: on a GPU the other block is mostly in time


def _by(entry: str) -> Callable[[torch.Tensor, torch.Tensor, int, float], torch.Tensor]:
    def softmax_backward(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
        g, p = (t.float().movedim(axis, -1) for t in (grad_out, y))
        grad = scale * p * (g - row_sums(entry, g * p))
        return torch.empty(y.shape, dtype=y.dtype, device=y.device).copy_(grad.movedim(-1, axis))

    return softmax_backward


mutant(
    "reads the sum of the other block without waiting for it",
    family="order",
    caught_by="memory",
    only="cpu",
    name="unwaited",
    requires=CLUSTERS,
)(_by("sums_unwaited"))
mutant(
    "a block ends while the other reads from it",
    family="order",
    caught_by="memory",
    only="cpu",
    name="left",
    requires=CLUSTERS,
)(_by("sums_left"))
