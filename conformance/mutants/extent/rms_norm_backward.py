"""Gradients of rms_norm, in pieces of rows of which the last is forgotten."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

Pair = tuple[torch.Tensor, torch.Tensor]
PIECE = 65535


def first_piece(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """More rows than a piece are cut off, though the sum over rows has them all."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    if x.numel() > PIECE * x.shape[-1]:
        grad_x.view(-1, x.shape[-1])[PIECE:] = 0
    return grad_x, grad_weight


VARIANTS = {"first_piece": Implementation(fn=first_piece, idea="rows beyond 65,535 are forgotten in grad_x")}

CAUGHT_BY = {"first_piece": "extent"}
