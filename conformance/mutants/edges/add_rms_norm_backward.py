"""The gradient of add_rms_norm in Triton, without that of the total."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation


def normalised_only(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    from kernelmux.conformance.mutants.edges import _kernels

    grads = grad_y.contiguous(), weight.contiguous(), eps
    grad_x = _triton.rows(_kernels.rms_norm_backward, total, -1, *grads)
    return grad_x, sound("add_rms_norm_backward", grad_y, grad_total, total, weight, eps)[1]


VARIANTS = {
    "normalised_only": Implementation(
        fn=normalised_only, idea="forgets the gradient of the total", requires=(_triton.IN_A_BLOCK,)
    )
}

CAUGHT_BY = {"normalised_only": "accuracy"}
