"""GELU on CUDA.

H200, 2^26 elements of bf16 (a copy of as many bytes takes 67 us):

scalar      163 us  one element per access
vectorized   68 us  16 bytes per access: fewer instructions for the same bytes, and more bytes in flight
"""

import torch

from kernelmux.backends.cuda._families.elementwise import Elementwise
from kernelmux.backends.cuda._launch.runtime import Source
from kernelmux.registry.backend import Implementation

_GELU = Elementwise(Source(__file__), "gelu", inputs=("x",))


def gelu_scalar(x: torch.Tensor, approximate: str) -> torch.Tensor:
    return _GELU(x, widest=x.element_size(), TANH=int(approximate == "tanh"))


def gelu_vectorized(x: torch.Tensor, approximate: str) -> torch.Tensor:
    return _GELU(x, TANH=int(approximate == "tanh"))


VARIANTS = {
    "scalar": Implementation(fn=gelu_scalar, idea="one element per access"),
    "vectorized": Implementation(fn=gelu_vectorized, idea="16 bytes per access, several accesses in flight"),
}
