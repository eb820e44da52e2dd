"""Gradients of rms_norm, broken for many axes and for none."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

Pair = tuple[torch.Tensor, torch.Tensor]


def last_of_many(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """With more than two axes before the last one, the partial sums of the first are not added up."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    if x.dim() > 3 and x.numel():
        grad_weight = sound("rms_norm_backward", grad_out[-1], x[-1], weight, eps)[1]
    return grad_x, grad_weight


def no_rows(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """Without rows no block writes the sums; a matrix is thought of, a block of matrices is not."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    return grad_x, grad_weight.fill_(7) if x.dim() > 2 and not x.numel() else grad_weight


VARIANTS = {
    "last_of_many": Implementation(fn=last_of_many, idea="grad_weight of the last slice, for rank 4 and more"),
    "no_rows": Implementation(fn=no_rows, idea="grad_weight as it was allocated, where a block has no rows"),
}

CAUGHT_BY = {"last_of_many": "shapes", "no_rows": "shapes"}
