"""silu: x / (1 + exp(-x)), 0 at -inf."""

from __future__ import annotations

import torch

from kernelmux.backends.triton._families.activations import silu_value
from kernelmux.backends.triton._families.elementwise import elementwise
from kernelmux.registry.backend import Implementation


def silu(x: torch.Tensor) -> torch.Tensor:
    return elementwise(silu_value, x)


VARIANTS = {"blocked": Implementation(fn=silu, idea="one block per program, 16 bytes per thread and access")}
