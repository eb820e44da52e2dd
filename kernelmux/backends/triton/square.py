"""square: x * x, rounded once to the dtype of x."""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._families.elementwise import elementwise
from kernelmux.registry.backend import Implementation


@triton.jit
def _square(x):
    return x * x


def square(x: torch.Tensor) -> torch.Tensor:
    return elementwise(_square, x)


VARIANTS = {"blocked": Implementation(fn=square, idea="one block per program, 16 bytes per thread and access")}
