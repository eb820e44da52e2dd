"""Gradient of hard swish on CUDA."""

import torch

from kernelmux.backends.cuda._elementwise import Elementwise
from kernelmux.backends.cuda._runtime import Source
from kernelmux.registry.backend import Implementation

_BACKWARD = Elementwise(Source(__file__), "hardswish_backward", inputs=("grad_out", "x"))


def hardswish_backward(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return _BACKWARD(grad_out, x)


VARIANTS = {"vectorized": Implementation(fn=hardswish_backward, idea="16 bytes per access")}
