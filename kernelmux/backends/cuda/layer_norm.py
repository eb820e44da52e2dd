"""Layer normalisation on CUDA: the mean and the squares of the distances from it, in one read."""

import torch

from kernelmux.backends.cuda._families.rows import Rows, row_variant
from kernelmux.backends.cuda._launch.runtime import Source

_ROWS = Rows(Source(__file__), "layer_norm", weights=("weight", "bias"), numbers=("eps",), most_held=64)


def layer_norm(walk: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    weights = (weight,) if bias is None else (weight, bias)
    return _ROWS.run(walk, (x, *weights), (eps,))[0]


VARIANTS = row_variant(layer_norm, "x", "weight", "bias")
