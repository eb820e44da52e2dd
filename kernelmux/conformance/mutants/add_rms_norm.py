"""add_rms_norm, broken."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._clusters import CLUSTERS, row_sums
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("add_rms_norm")


# edges: add_rms_norm in Triton: a mean over the padding as well, and a total that is the input.

Tensors = tuple[torch.Tensor, torch.Tensor]


@mutant(
    "the mean square over the block, not over the row",
    family="edges",
    caught_by="accuracy",
    requires=(_triton.IN_A_BLOCK,),
)
def over_the_block(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    from kernelmux.conformance.mutants import _kernels

    total = (x.float() + residual.float()).to(x.dtype).contiguous()
    return _triton.rows(_kernels.add_rms_norm, total, -1, weight.contiguous(), eps), total


@mutant("returns the input as the total", family="edges", caught_by="accuracy")
def total_of_input(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    y, _ = sound("add_rms_norm", x, residual, weight, eps)
    return y, x.clone(memory_format=torch.contiguous_format)


# order: add_rms_norm in pieces of rows, one of which takes the wrong thing.

PACKED = dict.fromkeys(("x", "residual", "weight"), "contiguous")
Pair = tuple[torch.Tensor, torch.Tensor]


def _normed(z: torch.Tensor, squared: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    r = torch.rsqrt(row_sums("sums_met", squared * squared) / max(z.shape[-1], 1) + eps)
    return (z * r * weight.float()).to(weight.dtype)


@mutant(
    "the squares are those of x, not of the total",
    family="order",
    caught_by="accuracy",
    requires=CLUSTERS,
    layout=PACKED,
)
def squares_of_x(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    total = x.float() + residual.float()
    return _normed(total, x.float(), weight, eps), total.to(x.dtype)


@mutant("the total is rounded twice", family="order", caught_by="accuracy", requires=CLUSTERS, layout=PACKED)
def total_twice_rounded(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """The saved total goes through bf16, which is what most callers have."""
    total = x.float() + residual.float()
    return _normed(total, total, weight, eps), total.to(torch.bfloat16).to(x.dtype)
