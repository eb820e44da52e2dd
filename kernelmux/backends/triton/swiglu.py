"""swiglu: silu(a) * b, rounded once."""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._families.activations import silu_value
from kernelmux.backends.triton._families.elementwise import elementwise
from kernelmux.registry.backend import Implementation


@triton.jit
def _gated(a, b):
    return silu_value(a) * b


def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return elementwise(_gated, a, b, follows=True)


VARIANTS = {
    "blocked": Implementation(
        fn=swiglu, idea="one block per program, 16 bytes per thread and access; halves of one tensor where they are"
    )
}
