"""SwiGLU on CUDA."""

import torch

from kernelmux.backends.cuda._families.elementwise import Elementwise
from kernelmux.backends.cuda._launch.runtime import Source
from kernelmux.registry.backend import Implementation

_SWIGLU = Elementwise(Source(__file__), "swiglu", inputs=("a", "b"), follows=True)


def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _SWIGLU(a, b)


VARIANTS = {
    "vectorized": Implementation(
        fn=swiglu, idea="16 bytes per access, several accesses in flight; halves of one tensor where they are"
    )
}
