"""Gradient of SiLU on CUDA."""

import torch

from kernelmux.backends.cuda._families.elementwise import Elementwise
from kernelmux.backends.cuda._launch.runtime import Source
from kernelmux.registry.backend import Implementation

_BACKWARD = Elementwise(Source(__file__), "silu_backward", inputs=("grad_out", "x"))


def silu_backward(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return _BACKWARD(grad_out, x)


VARIANTS = {"vectorized": Implementation(fn=silu_backward, idea="16 bytes per access, several accesses in flight")}
