"""hardswish: x * min(max(x + 3, 0), 6) / 6, rounded once to the dtype of x."""

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._elementwise import elementwise
from kernelmux.registry.backend import Implementation


@triton.jit
def _hardswish(x):
    return x * (tl.minimum(tl.maximum(x + 3, 0.0), 6.0) / 6)


def hardswish(x: torch.Tensor) -> torch.Tensor:
    return elementwise(_hardswish, x)


VARIANTS = {"blocked": Implementation(fn=hardswish, idea="one block per program, 16 bytes per thread and access")}
