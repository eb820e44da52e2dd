"""The gradient of log_softmax in Triton, with y in place of exp(y)."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.registry.backend import Implementation


def logarithms(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    from kernelmux.conformance.mutants.edges import _kernels

    return _triton.rows(_kernels.log_softmax_backward, y, axis, grad_out.movedim(axis, -1).contiguous())


VARIANTS = {
    "logarithms": Implementation(
        fn=logarithms, idea="weighs with the logarithms of the weights", requires=(_triton.IN_A_BLOCK,)
    )
}

CAUGHT_BY = {"logarithms": "accuracy"}
