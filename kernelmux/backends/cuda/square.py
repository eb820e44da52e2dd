"""Elementwise square on CUDA."""

import torch

from kernelmux.backends.cuda._families.elementwise import Elementwise
from kernelmux.backends.cuda._launch.runtime import Source
from kernelmux.registry.backend import Implementation

_SQUARE = Elementwise(Source(__file__), "square", inputs=("x",))


def square(x: torch.Tensor) -> torch.Tensor:
    return _SQUARE(x)


VARIANTS = {"vectorized": Implementation(fn=square, idea="16 bytes per access, several accesses in flight")}
