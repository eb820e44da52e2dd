"""Gradients of swiglu of which one is kept."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.conformance.mutants.state._memory import Ring
from kernelmux.registry.backend import Implementation

TWO = Ring(2)


def second_in_a_ring(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each first output is new, the second one of two buffers in turn."""
    grad_a, grad_b = sound("swiglu_backward", grad_out, a, b)
    return grad_a, TWO.next(grad_b).copy_(grad_b)


VARIANTS = {"second_in_a_ring": Implementation(fn=second_in_a_ring, idea="grad_b alternates between two buffers")}

CAUGHT_BY = {"second_in_a_ring": "state"}
