"""SwiGLU as two operators in a row, and with its inputs in the other order."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation


def rounded_between(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """silu(a) goes through the dtype of the tensors on its way to the product."""
    y: torch.Tensor = sound("silu", a) * b.contiguous()
    return y


def gate_last(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = sound("swiglu", b, a)
    return y


VARIANTS = {
    "rounded_between": Implementation(fn=rounded_between, idea="silu(a) is rounded before the product"),
    "gate_last": Implementation(fn=gate_last, idea="the second input is the gate, as in other conventions"),
}

CAUGHT_BY = dict.fromkeys(VARIANTS, "accuracy")
