"""Sum of an input and a residual, and its RMS normalisation, on CUDA."""

import torch

from kernelmux.backends.cuda._families.rows import Rows, row_variant
from kernelmux.backends.cuda._launch.runtime import Source

_ROWS = Rows(Source(__file__), "add_rms_norm", ("x", "residual"), ("weight",), ("y", "total"), ("eps",), follows=True)


def add_rms_norm(
    walk: str, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, ...]:
    return _ROWS.run(walk, (x, residual, weight), (eps,))


VARIANTS = row_variant(add_rms_norm, "x", "residual", "weight")
