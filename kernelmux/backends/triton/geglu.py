"""geglu: gelu(a) * b, rounded once, of the exact gelu or of its tanh approximation."""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._families.activations import gelu_erf, gelu_tanh
from kernelmux.backends.triton._families.elementwise import elementwise
from kernelmux.registry.backend import Implementation


@triton.jit
def _erf(a, b):
    return gelu_erf(a) * b


@triton.jit
def _tanh(a, b):
    return gelu_tanh(a) * b


def geglu(a: torch.Tensor, b: torch.Tensor, approximate: str) -> torch.Tensor:
    return elementwise(_tanh if approximate == "tanh" else _erf, a, b)


VARIANTS = {
    "blocked": Implementation(
        fn=geglu, idea="one block per program, 16 bytes per thread and access; halves of one tensor where they are"
    )
}
