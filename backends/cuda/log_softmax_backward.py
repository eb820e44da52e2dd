"""Gradient of log_softmax on CUDA."""

import torch

from kernelmux.backends.cuda._rows import Rows, row_variant
from kernelmux.backends.cuda._runtime import Source

_ROWS = Rows(Source(__file__), "log_softmax_backward", ("grad_out", "y"), outputs=("grad_x",))


def log_softmax_backward(walk: str, grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    return _ROWS.run(walk, (grad_out, y), axis=axis)[0]


VARIANTS = row_variant(log_softmax_backward, "grad_out", "y")
