"""add: x + y, rounded once to the dtype of x."""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._families.elementwise import elementwise
from kernelmux.registry.backend import Implementation


@triton.jit
def _add(x, y):
    return x + y


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return elementwise(_add, x, y)


VARIANTS = {
    "blocked": Implementation(fn=add, idea="one block per program, 16 bytes per thread and access", arithmetic="fp32"),
}
