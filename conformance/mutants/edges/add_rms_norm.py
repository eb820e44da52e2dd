"""add_rms_norm in Triton: a mean over the padding as well, and a total that is the input."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

Tensors = tuple[torch.Tensor, torch.Tensor]


def over_the_block(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    from kernelmux.conformance.mutants.edges import _kernels

    total = (x.float() + residual.float()).to(x.dtype).contiguous()
    return _triton.rows(_kernels.add_rms_norm, total, -1, weight.contiguous(), eps), total


def total_of_input(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    y, _ = sound("add_rms_norm", x, residual, weight, eps)
    return y, x.clone(memory_format=torch.contiguous_format)


VARIANTS = {
    "over_the_block": Implementation(
        fn=over_the_block, idea="the mean square over the block, not over the row", requires=(_triton.IN_A_BLOCK,)
    ),
    "total_of_input": Implementation(fn=total_of_input, idea="returns the input as the total"),
}

CAUGHT_BY = dict.fromkeys(VARIANTS, "accuracy")
