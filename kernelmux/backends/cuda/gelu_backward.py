"""Gradient of GELU on CUDA."""

import torch

from kernelmux.backends.cuda._families.elementwise import Elementwise
from kernelmux.backends.cuda._launch.runtime import Source
from kernelmux.registry.backend import Implementation

_BACKWARD = Elementwise(Source(__file__), "gelu_backward", inputs=("grad_out", "x"))


def gelu_backward(grad_out: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    return _BACKWARD(grad_out, x, TANH=int(approximate == "tanh"))


VARIANTS = {"vectorized": Implementation(fn=gelu_backward, idea="16 bytes per access, several accesses in flight")}
