"""gelu: x * P(X <= x) for a standard normal X, exactly (erf) or by its tanh approximation."""

from __future__ import annotations

import torch

from kernelmux.backends.triton._families.activations import gelu_erf, gelu_tanh
from kernelmux.backends.triton._families.elementwise import elementwise
from kernelmux.registry.backend import Implementation


def gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    return elementwise(gelu_tanh if approximate == "tanh" else gelu_erf, x)


VARIANTS = {
    "blocked": Implementation(
        fn=gelu, idea="one block per program; the normal tail as 2 to a polynomial", arithmetic="fp32"
    ),
}
