"""Gradient of softmax on CUDA."""

import torch

from kernelmux.backends.cuda._families.rows import Rows, row_variant
from kernelmux.backends.cuda._launch.runtime import Source

_ROWS = Rows(Source(__file__), "softmax_backward", ("grad_out", "y"), outputs=("grad_x",), numbers=("scale",))


def softmax_backward(walk: str, grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _ROWS.run(walk, (grad_out, y), (scale,), axis)[0]


VARIANTS = row_variant(softmax_backward, "grad_out", "y")
