"""Gradients of GEGLU on CUDA."""

import torch

from kernelmux.backends.cuda._families.elementwise import Elementwise
from kernelmux.backends.cuda._launch.runtime import Source
from kernelmux.registry.backend import Implementation

_BACKWARD = Elementwise(Source(__file__), "geglu_backward", inputs=("grad_out", "a", "b"), outputs=("grad_a", "grad_b"))


def geglu_backward(
    grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, approximate: str
) -> tuple[torch.Tensor, ...]:
    return _BACKWARD.all(grad_out, a, b, TANH=int(approximate == "tanh"))


VARIANTS = {
    "vectorized": Implementation(fn=geglu_backward, idea="both gradients in one pass, the share of a computed once")
}
