"""Logarithm of softmax on CUDA."""

import torch

from kernelmux.backends.cuda._families.rows import Rows, row_variant
from kernelmux.backends.cuda._launch.runtime import Source

_ROWS = Rows(Source(__file__), "log_softmax")


def log_softmax(walk: str, x: torch.Tensor, axis: int) -> torch.Tensor:
    return _ROWS.run(walk, (x,), axis=axis)[0]


VARIANTS = row_variant(log_softmax, "x")
