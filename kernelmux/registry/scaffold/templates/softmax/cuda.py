"""newop on CUDA: one block per row."""

import math

import torch

from kernelmux.backends.cuda._runtime import Source, ctype
from kernelmux.registry.backend import Implementation

SOURCE = Source(__file__)
GROUP = 256  # threads of a block


def rows(x: torch.Tensor, axis: int) -> torch.Tensor:
    y = torch.empty_like(x)
    if y.numel():
        n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
        kernel = SOURCE.kernel("newop_rows", "x* y* n:i64 inner:i64", ELEMENT=ctype(x.dtype), GROUP=GROUP)
        kernel(x.numel() // n, GROUP, x, y, n, inner)
    return y


VARIANTS = {"rows": Implementation(fn=rows, idea="one block per row", layout={"x": "contiguous"})}
