"""Hard swish on CUDA."""

import torch

from kernelmux.backends.cuda._elementwise import Elementwise
from kernelmux.backends.cuda._runtime import Source
from kernelmux.registry.backend import Implementation

_HARDSWISH = Elementwise(Source(__file__), "hardswish", inputs=("x",))


def hardswish(x: torch.Tensor) -> torch.Tensor:
    return _HARDSWISH(x)


VARIANTS = {"vectorized": Implementation(fn=hardswish, idea="16 bytes per access")}
