"""Polynomial of the third degree on CUDA."""

import torch

from kernelmux.backends.cuda._families.elementwise import Elementwise
from kernelmux.backends.cuda._launch.runtime import Source
from kernelmux.registry.backend import Implementation

_POLYNOMIAL = Elementwise(Source(__file__), "polynomial", inputs=("x",), scalars=("a", "b", "c", "d"))


def polynomial(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    return _POLYNOMIAL(x, scalars=(a, b, c, d))


VARIANTS = {
    "vectorized": Implementation(
        fn=polynomial, idea="Horner with coefficients that each launch passes; nothing is compiled for a value"
    )
}
