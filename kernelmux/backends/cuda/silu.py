"""SiLU on CUDA."""

import torch

from kernelmux.backends.cuda._families.elementwise import Elementwise
from kernelmux.backends.cuda._launch.runtime import Source
from kernelmux.registry.backend import Implementation

_SILU = Elementwise(Source(__file__), "silu", inputs=("x",))


def silu(x: torch.Tensor) -> torch.Tensor:
    return _SILU(x)


VARIANTS = {"vectorized": Implementation(fn=silu, idea="16 bytes per access, several accesses in flight")}
