"""polynomial: a x^3 + b x^2 + c x + d by Horner's rule in fp32; the coefficients arrive with each launch."""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._families.elementwise import elementwise
from kernelmux.registry.backend import Implementation


@triton.jit
def _horner(x, a, b, c, d):
    return ((a * x + b) * x + c) * x + d


def polynomial(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    return elementwise(_horner, x, scalars=(a, b, c, d))


VARIANTS = {
    "blocked": Implementation(
        fn=polynomial, idea="Horner with coefficients that each launch passes; nothing is compiled for a value"
    )
}
