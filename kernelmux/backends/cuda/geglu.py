"""GEGLU on CUDA."""

import torch

from kernelmux.backends.cuda._families.elementwise import Elementwise
from kernelmux.backends.cuda._launch.runtime import Source
from kernelmux.registry.backend import Implementation

_GEGLU = Elementwise(Source(__file__), "geglu", inputs=("a", "b"))


def geglu(a: torch.Tensor, b: torch.Tensor, approximate: str) -> torch.Tensor:
    return _GEGLU(a, b, TANH=int(approximate == "tanh"))


VARIANTS = {
    "vectorized": Implementation(
        fn=geglu, idea="16 bytes per access, several accesses in flight; halves of one tensor where they are"
    )
}
