"""The gradient of softmax in Triton, with a sum of gradients that knows no weights."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.registry.backend import Implementation


def _gradient(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float, weighed: bool) -> torch.Tensor:
    from kernelmux.conformance.mutants.edges import _kernels

    grad = grad_out.movedim(axis, -1).contiguous()
    return _triton.rows(_kernels.softmax_backward, y, axis, grad, scale, WEIGHED=weighed)


def weighed(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _gradient(grad_out, y, axis, scale, True)


def unweighed(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _gradient(grad_out, y, axis, scale, False)


VARIANTS = {
    "weighed": Implementation(fn=weighed, idea="nothing is wrong with it", requires=(_triton.IN_A_BLOCK,)),
    "unweighed": Implementation(
        fn=unweighed, idea="sums gradients without their weights", requires=(_triton.IN_A_BLOCK,)
    ),
}

CAUGHT_BY = {"unweighed": "accuracy"}
