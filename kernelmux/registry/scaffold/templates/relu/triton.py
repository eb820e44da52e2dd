"""newop, element by element, rounded once to the dtype of x."""

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._elementwise import elementwise
from kernelmux.registry.backend import Implementation


@triton.jit
def _formula(x):
    return tl.where(x <= 0, 0.0, x)  # TODO(newop): of a tile of fp32


def blocked(x: torch.Tensor) -> torch.Tensor:
    return elementwise(_formula, x)


VARIANTS = {"blocked": Implementation(fn=blocked, idea="one block per program, 16 bytes per thread and access")}
